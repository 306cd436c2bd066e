// Who sends most: addresses and ports of the last minutes, from the log.
import { useEffect, useState } from "preact/hooks";
import { address, lines, type SearchEvent, type SearchResult } from "../api/client";
import { bytes, count } from "../format";
import { asRefused, useLoad } from "../hooks";
import { link } from "../router";
import { Card, Choice, CoveredNote, Loading, Meter, Problem } from "../ui/bits";

const MINUTES = 5;
/** How often it is looked up; more often while there is nothing. */
const AGAIN_MS = 60_000;
const SOON_MS = 5_000;

function start(): number {
  return Math.floor(Date.now() / 1000) - MINUTES * 60;
}

/** The result of a search, without its rows. */
async function found(log: string, from: string, signal: AbortSignal): Promise<SearchResult | null> {
  const url = address("search", { path: { log }, query: { from, points: 10 } });
  for await (const event of lines<SearchEvent>(url, signal)) {
    if (event.event === "error") throw new Error(event.problem?.error ?? "the search failed");
    if (event.event === "done") return event.result ?? null;
  }
  return null;
}

export function Talkers(props: { log: string }) {
  const [what, setWhat] = useState<"addresses" | "ports">("addresses");
  const [from, setFrom] = useState(start);
  const result = useLoad((signal) => found(props.log, String(from), signal), [props.log, from]);
  const nothing = !result.data || result.data.packets === 0;
  useEffect(() => {
    const timer = setInterval(
      () => {
        if (!document.hidden) setFrom(start());
      },
      nothing ? SOON_MS : AGAIN_MS,
    );
    return () => clearInterval(timer);
  }, [nothing]);
  const top = result.data?.top[what].slice(0, 8) ?? [];
  const most = top[0]?.wire_bytes ?? 1;
  const query = (name: string) => (what === "addresses" ? `host ${name}` : portFilter(name));
  return (
    <Card
      title={`Most traffic, last ${MINUTES} min`}
      side={
        <Choice
          label="Addresses or ports"
          of={[
            ["addresses", "Addresses"],
            ["ports", "Ports"],
          ]}
          is={what}
          choose={setWhat}
        />
      }
    >
      <Problem of={result.problem && asRefused(result.problem)} again={result.again} />
      <Loading when={result.loading && !result.data} />
      {result.data && top.length === 0 && <p>Nothing in the log yet.</p>}
      <ul class="top-list">
        {top.map((one) => (
          <li key={one.what}>
            <a href={link("/search", { log: props.log, filter: query(one.what), from: String(from) })}>{one.what}</a>
            <Meter share={one.wire_bytes / most} label={`share of the largest, ${one.what}`} />
            <span class="number">{bytes(one.wire_bytes)}</span>
            <span class="number quiet">{count(one.packets)} packets</span>
          </li>
        ))}
      </ul>
      <CoveredNote of={result.data && !result.data.covered.complete ? result.data.covered : null} />
    </Card>
  );
}

/** `tcp/443` as a filter. */
export function portFilter(name: string): string {
  const [protocol, port] = name.split("/");
  return port ? `${protocol} port ${port}` : `port ${name}`;
}
