// Search: flows of a log that match a filter, in a time, of a class, for a reason.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { call } from "../api/client";
import type { Flow, Log, SearchResult, Series, Session } from "../api/client";
import { type Known, mapped, type Outline, Part, said, search, type Searched, shown, type SoFar } from "../api/stream";
import { bytes, byteRate, count, dayTime, percent, plural, rate } from "../format";
import { asRefused, useKept, useLatest, useMedia } from "../hooks";
import type { View } from "../main";
import { changed, go, link, type Place } from "../router";
import { useDark } from "../theme";
import { Choice, CoveredNote, Loading, Notice, Problem, Select } from "../ui/bits";
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

interface Found {
  /** How much was looked at, 0 to 1. */
  share: number;
  /** Of everything in the time, before its packets are read; without a filter. */
  outline: Outline | null;
  /** While the search runs; of one that failed, what it had. */
  soFar: Part<SoFar> | null;
  /** At its end. */
  end: Searched | null;
  problem: Error | null;
}

const BEGUN: Found = { share: 0, outline: null, soFar: null, end: null, problem: null };

export function Search({ place, session }: View) {
  const what = asked(place, session);
  const key = JSON.stringify(what);
  const [found, setFound] = useState<Found & { of: string }>({ ...BEGUN, of: key });
  const [turn, setTurn] = useState(0);
  const { log, sampled } = useLog(what.log, session, [what.from, what.to, turn]);
  useEffect(() => {
    if (what.log === "") return;
    const control = new AbortController();
    const { signal } = control;
    setFound({ ...BEGUN, of: key });
    const { log, ...query } = what;
    search(log, { ...query, points: POINTS } as never, signal, ({ found, ...news }) =>
      setFound((before) => ({ ...before, ...news, ...(found && { soFar: found }) })),
    ).then(
      (end) => {
        if (!signal.aborted) setFound({ ...BEGUN, end, of: key });
      },
      (error: unknown) => {
        if (!signal.aborted) setFound(({ soFar }) => ({ ...BEGUN, soFar, problem: asRefused(error), of: key }));
      },
    );
    return () => control.abort();
  }, [key, turn]);
  if (session.logs.length === 0) {
    return <Notice kind="info">No log is open: start strata serve with the directory of a log.</Notice>;
  }
  // Drawn once before the effect has run.
  const mine = found.of === key ? found : BEGUN;
  const { outline, soFar, end, problem } = mine;
  const again = () => setTurn(turn + 1);
  const over: Known<Series> | null =
    outline?.histogram ??
    (end ? mapped(end.result, ({ histogram }) => histogram) : problem ? null : (soFar?.pick(({ histogram }) => histogram) ?? null));
  return (
    <>
      <h1 class="unseen">Search</h1>
      <a class="skip" href="#flows">
        Skip to the flows
      </a>
      <Form place={place} session={session} what={what} log={log} again={again} found={mine} />
      {problem && !inFilter(problem) && <Problem of={problem} again={again} />}
      {over && shown(over, (over) => <Histogram place={place} over={over} />)}
      {end && <CoveredNote of={end.about.covered} />}
      {end && <SampledNote of={sampled} />}
      <div class="searched">
        {outline && <Facets place={place} what={what} result={{ ...outline, ...NOT_YET }} />}
        {end && shown(end.result, (result) => <Facets place={place} what={what} result={result} />)}
        <Flows
          what={what}
          place={place}
          found={mine}
          expired={again}
          payload={session.roles.includes("payload")}
          sampled={sampled}
        />
      </div>
    </>
  );
}

/** Points of the histogram. */
const POINTS = 200;

/** What only the packets tell. */
const NOT_YET = { reason_words: [], top: { addresses: [], ports: [] } };

/** Whether the filter's input says it. */
function inFilter(problem: Error): boolean {
  return "problem" in problem && (problem.problem as { field?: string | null }).field === "filter";
}

/** In place of flows: an empty list says nothing about the log. */
function Unsearched(props: { filter: boolean; begun: boolean }) {
  return (
    <section class="card" aria-label="Flows">
      <header>
        <h2>Flows</h2>
      </header>
      <p>
        {props.begun ? "The search did not finish, and its results are not listed: " : "The log was not searched: "}
        {props.filter ? "the filter has an error, marked in the filter." : "see the error above."}
      </p>
    </section>
  );
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
  const running = found.end === null && found.problem === null;
  const wrong = found.problem && inFilter(found.problem) && filter.trim() === what.filter ? found.problem : null;
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
        problem={wrong && "problem" in wrong ? (wrong.problem as never) : null}
      />
      <Times place={place} what={what} log={log} typed={times.typed} type={times.type} />
      <button type="submit" class="main">
        Search
      </button>
      <div class="search-state" role="status">
        {running && found.outline && (
          <span>
            <b>{plural(found.outline.packets, "packet")}</b>, {bytes(found.outline.wire_bytes)} on the wire,{" "}
            {bytes(found.outline.kept_bytes)} kept.{" "}
          </span>
        )}
        {running && progress(found)}
        {found.end &&
          (found.end.result instanceof Part ? (
            <span>{found.end.result.said(inNumbers)}: see below</span>
          ) : (
            <span>{inNumbers(found.end.result)}</span>
          ))}
        {narrowed && (
          <span class="narrowed">
            {(["class", "granularity", "reason"] as const).map(
              (name) =>
                what[name] && (
                  <a key={name} class="chip" href={changed(place, { [name]: null })} title="Remove">
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

/** What a search does, and what it has found so far. */
function progress({ outline, share, soFar }: Found): string {
  const doing = `${outline ? "Listing flows" : "Searching"}, ${percent(share)}`;
  const found = soFar?.said(({ flows, packets }) =>
    outline ? plural(flows, "flow") : `${plural(flows, "flow")}, ${plural(packets, "packet")}`,
  );
  return found ? `${doing}: ${found}` : `${doing} …`;
}

function inNumbers({ flows, packets, wire_bytes, kept_bytes }: SearchResult): string {
  return `${plural(flows, "flow")}, ${plural(packets, "packet")}, ${bytes(wire_bytes)} on the wire, ${bytes(kept_bytes)} kept`;
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
          {dayTime(BigInt(Math.floor(start)) * 1_000_000_000n)} · drag to select a time range
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
  ["kept_bytes desc", "Most disk space"],
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
  const { what } = props;
  const { end, soFar, problem } = props.found;
  if (problem) return <Unsearched filter={inFilter(problem)} begun={soFar !== null} />;
  if (end) return <Listed key={end.search} {...props} end={end} />;
  return (
    <section class="card flows" aria-label="Flows" id="flows" tabIndex={-1}>
      <header>
        <h2>Flows</h2>
      </header>
      {soFar?.shown(({ rows }) => <First what={what} rows={rows} />) ?? <Loading when />}
    </section>
  );
}

/** The first flows while the search goes on: in the order in which they are found. */
function First({ what, rows }: { what: Asked; rows: Flow[] }) {
  const narrow = useMedia("(max-width: 640px)");
  const [chosen] = useKept<string[]>("search.columns", DEFAULT);
  const named = rows.some((flow) => flow.name);
  const wide = allColumns.filter(({ key }) => chosen.includes(key) && (key !== "name" || named));
  const columns = (narrow ? NARROW : wide).map((column) => ({ ...column, sorts: false }));
  return (
    <VirtualTable
      label="First flows, so far"
      columns={columns}
      total={rows.length}
      row={(index) => rows[index]}
      want={nothing}
      open={(flow) => go(flowLink(what, flow))}
      height={narrow ? 420 : 520}
    />
  );
}

function nothing(): void {
  // All rows are here.
}

function flowLink(what: Asked, flow: Flow): string {
  return link("/flow", { log: what.log, flow: flow.id, from: what.from, to: what.to, filter: flow.filter });
}

function Listed(props: FlowsProps & { end: Searched }) {
  const { what, place, end } = props;
  const sort = place.query.get("sort") ?? "first";
  const order = place.query.get("order") === "desc" ? "desc" : "asc";
  const narrow = useMedia("(max-width: 640px)");
  const [chosen, setChosen] = useKept<string[]>("search.columns", DEFAULT);
  const pages = usePages(end, sort, order, props.expired);
  // Logs that are not compacted have no names.
  const named = Array.from({ length: PAGE }, (_, index) => pages.row(index)).some((flow) => flow?.name);
  const wide = allColumns.filter(({ key }) => chosen.includes(key) && (key !== "name" || named || sort === "name"));
  const columns = narrow ? NARROW : wide;
  const onSort = (key: string) => {
    const turned = sort === key ? (order === "asc" ? "desc" : "asc") : biggestFirst(columns, key) ? "desc" : "asc";
    go(changed(place, { sort: key, order: turned }), true);
  };
  const { listed } = end.about;
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
        <Downloads what={what} command={end.about.command} payload={props.payload}>
          <SampledNote of={props.sampled} />
        </Downloads>
      </header>
      {shown(
        end.result,
        ({ flows }) =>
          flows > listed && (
            <Notice kind="warn">
              Only the first {count(listed)} of {count(flows)} flows are listed: narrow the time range or the filter.
            </Notice>
          ),
      )}
      <Problem of={pages.problem} />
      {listed === 0 ? (
        <p>{said(end.result, () => "No flow matches")}.</p>
      ) : (
        <VirtualTable
          label="Flows"
          columns={columns}
          total={listed}
          row={pages.row}
          want={pages.want}
          open={(flow) => go(flowLink(what, flow))}
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
function usePages(end: Searched, sort: string, order: "asc" | "desc", expired: () => void) {
  const of = `${end.search} ${sort} ${order}`;
  const pages = useRef({ of, rows: new Map<number, Flow[]>(), asked: new Set<number>() });
  const [, setTurn] = useState(0);
  const [problem, setProblem] = useState<Error | null>(null);
  if (pages.current.of !== of) pages.current = { of, rows: new Map(), asked: new Set() };
  const fetchPage = useLatest(async (page: number) => {
    const mine = pages.current;
    mine.asked.add(page);
    try {
      const query = { sort: sort as "first", order, offset: page * PAGE, limit: PAGE };
      const { rows } = await call("flows", { path: { search: end.search }, query });
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
      for (let page = Math.floor(from / PAGE); page <= Math.floor(Math.max(to - 1, from) / PAGE); page += 1) {
        const { rows, asked } = pages.current;
        if (!rows.has(page) && !asked.has(page)) void fetchPage(page);
      }
    },
    [of],
  );
  // Not one that was found while the search went on: its sums were those so far.
  const row = (index: number): Flow | undefined => pages.current.rows.get(Math.floor(index / PAGE))?.[index % PAGE];
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
