// Search: flows of a log that match a filter, in a time, of a class, for a reason.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { address, call, lines as ndjson } from "../api/client";
import type { Flow, Log, SearchEvent, SearchResult, Series, Session } from "../api/client";
import { bytes, byteRate, count, dayTime, percent, plural, rate } from "../format";
import { asRefused, useKept, useLatest, useMedia } from "../hooks";
import type { View } from "../main";
import { changed, go, link, type Place } from "../router";
import { useDark } from "../theme";
import { Choice, CoveredNote, Notice, Problem, Select } from "../ui/bits";
import { Chart } from "../ui/chart";
import { Downloads } from "../ui/downloads";
import { FilterInput } from "../ui/filter";
import { type Amount, fromSeries, lines } from "../ui/series";
import { type Column, VirtualTable } from "../ui/table";
import { Facets } from "./facets";
import { type Sampled, SampledNote, useLog } from "./not-kept";
import { columns as allColumns, DEFAULT, NARROW } from "./flow-columns";
import { brushed, Times, useTyped } from "./times";

/** What is searched, as it stands in the URL. */
export interface Asked {
  log: string;
  filter: string;
  from: string;
  to: string;
  class: string;
  reason: string;
  granularity: string;
}

export function asked(place: Place, session: Session): Asked {
  const of = (name: string) => place.query.get(name) ?? "";
  const log = of("log") || (session.logs[0]?.id ?? "");
  return {
    log,
    filter: of("filter"),
    from: of("from"),
    to: of("to"),
    class: of("class"),
    reason: of("reason"),
    granularity: of("granularity"),
  };
}

type Outline = NonNullable<SearchEvent["outline"]>;

export interface Found {
  search: string;
  share: number;
  flows: number;
  rows: Flow[];
  /** Of everything in the time, before its packets are read; without a filter. */
  outline: Outline | null;
  /** While the search runs. */
  soFar: { packets: number; histogram: Series | null } | null;
  result: SearchResult | null;
  problem: Error | null;
  running: boolean;
}

const NOTHING: Found = { search: "", share: 0, flows: 0, rows: [], outline: null, soFar: null, result: null, problem: null, running: true };

export function Search({ place, session }: View) {
  const what = asked(place, session);
  const key = JSON.stringify(what);
  const [found, setFound] = useState<Found>(NOTHING);
  const [turn, setTurn] = useState(0);
  const { log, sampled } = useLog(what.log, session, [what.from, what.to, turn]);
  useEffect(() => {
    if (what.log === "") return;
    const control = new AbortController();
    setFound((before) => ({ ...NOTHING, result: before.result }));
    search(what, control.signal, (change) => setFound((before) => ({ ...before, ...change }))).catch(
      (error: unknown) => {
        if (!control.signal.aborted) setFound({ ...NOTHING, problem: asRefused(error), running: false });
      },
    );
    return () => control.abort();
  }, [key, turn]);
  if (session.logs.length === 0) {
    return <Notice kind="info">No log is looked at: start strata serve with the directory of a log.</Notice>;
  }
  const { result } = found;
  // What is found so far, rather than what another search found.
  const over = found.outline?.histogram ?? found.soFar?.histogram ?? result?.histogram;
  const narrowBy = found.outline ? { ...found.outline, ...NOT_YET } : result;
  return (
    <>
      <h1 class="unseen">Search</h1>
      <a class="skip" href="#flows">
        Skip to the flows
      </a>
      <Form place={place} session={session} what={what} log={log} again={() => setTurn(turn + 1)} found={found} />
      {found.problem && !inFilter(found.problem) && (
        <Problem of={found.problem} again={() => setTurn(turn + 1)} />
      )}
      {over && <Histogram place={place} over={over} />}
      {result && <CoveredNote of={result.covered} />}
      {result && <SampledNote of={sampled} />}
      <div class="searched">
        {narrowBy && <Facets place={place} what={what} result={narrowBy} />}
        <Flows
          what={what}
          place={place}
          found={found}
          expired={() => setTurn(turn + 1)}
          payload={session.roles.includes("payload")}
          sampled={sampled}
        />
      </div>
    </>
  );
}

/** What only the packets tell. */
const NOT_YET = { reasons: [], top: { addresses: [], ports: [] } };

/** Whether the filter's input says it. */
function inFilter(problem: Error): boolean {
  return "problem" in problem && (problem.problem as { field?: string | null }).field === "filter";
}

/** In place of flows: that none are listed says nothing about the log. */
function Unsearched(props: { filter: boolean }) {
  return (
    <section class="card" aria-label="Flows">
      <header>
        <h2>Flows</h2>
      </header>
      <p>
        Nothing was searched: {props.filter ? "the filter has an error, shown where it is." : "what is wrong is said above."}
      </p>
    </section>
  );
}

async function search(what: Asked, signal: AbortSignal, tell: (change: Partial<Found>) => void): Promise<void> {
  const { log, ...query } = what;
  const url = address("search", { path: { log }, query: { ...query, points: 200 } as never });
  for await (const event of ndjson<SearchEvent>(url, signal)) {
    if (event.event === "begin") tell({ search: event.search ?? "" });
    else if (event.event === "outline") tell({ outline: event.outline ?? null });
    else if (event.event === "progress") {
      const rows = event.rows && event.rows.length > 0 ? { rows: event.rows } : {};
      const { histogram, packets = 0 } = event;
      const soFar = { packets, histogram: histogram ?? null };
      tell({ share: event.share ?? 0, flows: event.flows ?? 0, soFar, ...rows });
    } else if (event.event === "done") {
      const result = event.result ?? null;
      tell({ result, outline: null, soFar: null, flows: result?.flows ?? 0, running: false, share: 1, ...(event.search ? { search: event.search } : {}) });
    } else if (event.problem) {
      throw new Error(event.problem.error);
    }
  }
  if (!signal.aborted) tell({ running: false });
}

interface FormProps {
  place: Place;
  session: Session;
  what: Asked;
  log: Log | null;
  again: () => void;
  found: Found;
}

function Form({ place, session, what, log, again, found }: FormProps) {
  const [filter, setFilter] = useState(what.filter);
  const times = useTyped(what);
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => setFilter(what.filter), [what.filter]);
  const begin = () => {
    const changes = times.changes();
    if (changes === null) {
      form.current?.reportValidity();
      return;
    }
    const url = changed(place, { ...changes, filter: filter.trim() });
    if (url === location.pathname + location.search) again();
    else go(url);
  };
  const submit = (event: Event) => {
    event.preventDefault();
    begin();
  };
  const narrowed = what.class || what.reason || what.granularity;
  const said = found.problem && inFilter(found.problem) && filter.trim() === what.filter ? found.problem : null;
  return (
    <form ref={form} class="search card" role="search" onSubmit={submit}>
      {session.logs.length > 1 && (
        <Select
          label="Log"
          is={what.log}
          of={session.logs.map(({ id, path }) => [id, path] as const)}
          choose={(log) => go(changed(place, { log, from: null, to: null }))}
        />
      )}
      <FilterInput
        label="Filter"
        value={filter}
        change={setFilter}
        done={begin}
        placeholder="host 10.0.0.1 and tcp port 443"
        problem={said && "problem" in said ? (said.problem as never) : null}
      />
      <Times place={place} what={what} log={log} typed={times.typed} type={times.type} />
      <button type="submit" class="main">
        Search
      </button>
      <div class="search-state" role="status">
        {found.running && found.outline && (
          <span>
            <b>{plural(found.outline.packets, "packet")}</b>, {bytes(found.outline.wire_bytes)} captured,{" "}
            {bytes(found.outline.kept_bytes)} kept.{" "}
          </span>
        )}
        {found.running && !found.problem && found.outline && `Listing flows, ${percent(found.share)}: ${plural(found.flows, "flow")} so far`}
        {found.running && !found.problem && !found.outline && `Searching, ${percent(found.share)}: ${plural(found.flows, "flow")}${found.soFar ? `, ${plural(found.soFar.packets, "packet")}` : ""} so far`}
        {!found.running && found.result && (
          <span>
            <b>{plural(found.result.flows, "flow")}</b>, {plural(found.result.packets, "packet")},{" "}
            {bytes(found.result.wire_bytes)} captured, {bytes(found.result.kept_bytes)} kept
          </span>
        )}
        {narrowed && (
          <span class="narrowed">
            {(["class", "granularity", "reason"] as const).map(
              (name) =>
                what[name] && (
                  <a key={name} class="chip" href={changed(place, { [name]: null })} title="Take away">
                    {name}: {what[name]} ✕
                  </a>
                ),
            )}
          </span>
        )}
      </div>
    </form>
  );
}

const AMOUNTS = [
  ["packets", "Packets"],
  ["captured_bytes", "Bytes"],
  ["kept_bytes", "Kept"],
] as const;

function Histogram({ place, over }: { place: Place; over: Series }) {
  const dark = useDark();
  const [amount, setAmount] = useKept<Amount>("search.amount", "packets");
  const points = fromSeries(over);
  const start = points.t[0];
  if (start === undefined) return null;
  const end = (points.t.at(-1) ?? start) + over.step;
  const brush = (from: number, to: number) => go(changed(place, brushed(from, to)));
  return (
    <section class="card" aria-label="Over time">
      <header>
        <Choice label="Amount" of={AMOUNTS} is={amount} choose={setAmount} />
        <span class="quiet">
          {dayTime(BigInt(Math.floor(start)) * 1_000_000_000n)}, drag to choose a time
        </span>
      </header>
      <Chart
        label="Packets found over time"
        t={points.t}
        lines={lines(points, amount, dark)}
        format={amount === "packets" ? rate : byteRate}
        height={150}
        bars
        range={[start, end]}
        brush={brush}
      />
    </section>
  );
}

/** What one mostly wants to see first. */
const ORDERS = [
  ["first asc", "By time"],
  ["kept_bytes desc", "Most disk"],
  ["wire_bytes desc", "Most traffic"],
] as const;

/** Rows asked for at a time. */
const PAGE = 200;
/** Pages kept; the ones not seen for longest go. */
const PAGES = 60;

interface FlowsProps {
  what: Asked;
  place: Place;
  found: Found;
  expired: () => void;
  payload: boolean;
  sampled: Sampled | null;
}

function Flows(props: FlowsProps) {
  const { what, place, found } = props;
  const sort = place.query.get("sort") ?? "first";
  const order = place.query.get("order") === "desc" ? "desc" : "asc";
  const narrow = useMedia("(max-width: 640px)");
  const [chosen, setChosen] = useKept<string[]>("search.columns", DEFAULT);
  const pages = usePages(found, sort, order, props.expired);
  if (found.problem) return <Unsearched filter={inFilter(found.problem)} />;
  const listed = found.running ? found.rows.length : (found.result?.listed ?? found.rows.length);
  // Logs that are not compacted have no names.
  const named = Array.from({ length: PAGE }, (_, index) => pages.row(index)).some((flow) => flow?.name);
  const wide = allColumns.filter(({ key }) => chosen.includes(key) && (key !== "name" || named || sort === "name"));
  const shown = narrow ? NARROW : wide;
  const onSort = (key: string) => {
    const turned = sort === key ? (order === "asc" ? "desc" : "asc") : biggestFirst(shown, key) ? "desc" : "asc";
    go(changed(place, { sort: key, order: turned }), true);
  };
  const open = (flow: Flow) =>
    go(link("/flow", { log: what.log, flow: flow.id, from: what.from, to: what.to, filter: flow.filter }));
  return (
    <section class="card flows" aria-label="Flows" id="flows" tabIndex={-1}>
      <header>
        <h2>Flows</h2>
        <Choice
          label="Order"
          of={ORDERS}
          is={ORDERS.find(([key]) => key === `${sort} ${order}`)?.[0] ?? ("" as "first asc")}
          choose={(key) => {
            const [sort = "", order = ""] = key.split(" ");
            go(changed(place, { sort, order }), true);
          }}
        />
        {!narrow && <ColumnChoice chosen={chosen} choose={setChosen} />}
        <Downloads what={what} command={found.result?.command ?? null} payload={props.payload}>
          <SampledNote of={props.sampled} />
        </Downloads>
      </header>
      {!found.running && found.result && found.result.flows > listed && (
        <Notice kind="warn">
          The first {count(listed)} of {count(found.result.flows)} flows can be listed: narrow the time or the filter.
        </Notice>
      )}
      <Problem of={pages.problem} />
      {!found.running && listed === 0 ? (
        <p>No flow matches.</p>
      ) : (
        <VirtualTable
          label="Flows"
          columns={shown}
          total={listed}
          row={pages.row}
          want={pages.want}
          open={open}
          sort={sort}
          order={order}
          onSort={onSort}
          height={narrow ? 420 : 520}
          remember={`flows ${location.search}`}
        />
      )}
    </section>
  );
}

function biggestFirst(columns: Column<Flow>[], key: string): boolean {
  return columns.find((column) => column.key === key)?.number ?? false;
}

/** Rows of a result, a page at a time, as they come into sight. */
function usePages(found: Found, sort: string, order: "asc" | "desc", expired: () => void) {
  const of = `${found.search} ${sort} ${order}`;
  const pages = useRef({ of, rows: new Map<number, Flow[]>(), asked: new Set<number>() });
  const [, setTurn] = useState(0);
  const [problem, setProblem] = useState<Error | null>(null);
  if (pages.current.of !== of) pages.current = { of, rows: new Map(), asked: new Set() };
  const ready = found.result !== null && !found.running && found.search !== "";
  const fetchPage = useLatest(async (page: number) => {
    const mine = pages.current;
    mine.asked.add(page);
    try {
      const query = { sort: sort as "first", order, offset: page * PAGE, limit: PAGE };
      const { rows } = await call("flows", { path: { search: found.search }, query });
      mine.rows.set(page, rows);
      const oldest = mine.rows.keys().next().value;
      if (mine.rows.size > PAGES && oldest !== undefined) mine.rows.delete(oldest);
      setProblem(null);
      setTurn((turn) => turn + 1);
    } catch (error) {
      const refused = asRefused(error);
      if (refused.code === "expired") expired();
      else setProblem(refused);
    } finally {
      mine.asked.delete(page);
    }
  });
  const want = useCallback(
    (from: number, to: number) => {
      if (!ready) return;
      for (let page = Math.floor(from / PAGE); page <= Math.floor(Math.max(to - 1, from) / PAGE); page += 1) {
        const { rows, asked } = pages.current;
        if (!rows.has(page) && !asked.has(page)) void fetchPage(page);
      }
    },
    [of, ready],
  );
  const plain = sort === "first" && order === "asc";
  const row = (index: number): Flow | undefined =>
    pages.current.rows.get(Math.floor(index / PAGE))?.[index % PAGE] ??
    (plain || !ready ? found.rows[index] : undefined);
  return { row, want, problem };
}

function ColumnChoice(props: { chosen: string[]; choose: (keys: string[]) => void }) {
  const turn = (key: string) =>
    props.choose(props.chosen.includes(key) ? props.chosen.filter((one) => one !== key) : [...props.chosen, key]);
  return (
    <details class="menu">
      <summary>Columns</summary>
      <div class="menu-body">
        {allColumns.map(({ key, name }) => (
          <label key={key}>
            <input type="checkbox" checked={props.chosen.includes(key)} onChange={() => turn(key)} /> {name}
          </label>
        ))}
      </div>
    </details>
  );
}
