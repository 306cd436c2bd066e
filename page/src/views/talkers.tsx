// Who sends most: addresses and ports of the last minutes, from the log.
import { useEffect, useState } from "preact/hooks";
import type { SearchResult } from "../api/client";
import { search, shown } from "../api/stream";
import { bytes, plural } from "../format";
import { asRefused, useLoad } from "../hooks";
import { link } from "../router";
import { Address, Card, Choice, CoveredNote, Loading, Meter, Problem } from "../ui/bits";

const MINUTES = 5;
/** How often it is looked up; more often while there is nothing. */
const AGAIN_MS = 60_000;
const SOON_MS = 5_000;

function start(): number {
  return Math.floor(Date.now() / 1000) - MINUTES * 60;
}

export function Talkers(props: { log: string }) {
  const [what, setWhat] = useState<"addresses" | "ports">("addresses");
  const [from, setFrom] = useState(start);
  const result = useLoad(
    (signal) => search(props.log, { from: String(from), points: 10 }, signal),
    [props.log, from],
    [props.log],
  );
  const nothing = !result.data || result.data.isEmpty;
  useEffect(() => {
    const timer = setInterval(
      () => {
        if (!document.hidden) setFrom(start());
      },
      nothing ? SOON_MS : AGAIN_MS,
    );
    return () => clearInterval(timer);
  }, [nothing]);
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
      {result.data &&
        shown(result.data.result, ({ top }) => (
          <Top of={top[what].slice(0, 8)} to={(name) => link("/search", { log: props.log, filter: query(name), from: String(from) })} />
        ))}
      <CoveredNote of={result.data && !result.data.about.covered.complete ? result.data.about.covered : null} />
    </Card>
  );
}

function Top(props: { of: SearchResult["top"]["addresses"]; to: (name: string) => string }) {
  if (props.of.length === 0) return <p>No packets of the last {MINUTES} min in the log yet.</p>;
  const most = props.of[0]?.wire_bytes ?? 1;
  return (
    <ul class="top-list">
      {props.of.map((one) => (
        <li key={one.what}>
          <a href={props.to(one.what)}>
            <Address of={one.what} owner={one.owner} />
          </a>
          <Meter share={one.wire_bytes / most} label={`share of the largest, ${one.what}`} />
          <span class="number">{bytes(one.wire_bytes)}</span>
          <span class="number quiet">{plural(one.packets, "packet")}</span>
        </li>
      ))}
    </ul>
  );
}

/** `tcp/443` as a filter. */
export function portFilter(name: string): string {
  const [protocol, port] = name.split("/");
  return port ? `${protocol} port ${port}` : `port ${name}`;
}
