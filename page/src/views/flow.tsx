// A flow: its packets in both directions.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { call, nanoseconds } from "../api/client";
import type { Changed, Covered, Flow, Packet, Policy, Session } from "../api/client";
import { flowOf, type FlowFound, type Identity, type Known, type Part, shown } from "../api/stream";
import { bytes, count, dayTime, duration, percent, plural, time, toLocal, zone } from "../format";
import { asRefused, useLoad, useMedia } from "../hooks";
import type { View } from "../main";
import { changed, go, link } from "../router";
import { Address, Big, Command, CoveredNote, Done, Labelled, Loading, Problem } from "../ui/bits";
import { kept } from "../ui/colour";
import { Downloads } from "../ui/downloads";
import { type Column, VirtualTable } from "../ui/table";
import { ClassName, end, seconds } from "./flow-columns";
import { moment } from "./times";

/** Packets asked for at a time, and most that the page holds. */
const PAGE = 500;
const PACKETS_MOST = 200_000;

/** A flow with its sums, as far as they are known. */
interface Counted {
  /** Null while it is counted, and where no search finds it. */
  found: FlowFound | null;
  soFar: Part<Flow> | null;
  share: number;
  counting: boolean;
  problem: Error | null;
  again: () => void;
}

function useCounted(log: string, flow: string, query: { from: string; to: string }): Counted {
  const { from, to } = query;
  const [news, setNews] = useState<{ share: number; soFar: Part<Flow> | null }>(NO_NEWS);
  const { data, loading, problem, again } = useLoad<Counted["found"]>(
    async (signal) => {
      setNews(NO_NEWS);
      if (flow === "") return null;
      return flowOf(log, { flow, from, to }, ({ id }) => id === flow, signal, (share, found) => {
        setNews(({ soFar }) => ({ share, soFar: found ?? soFar }));
      });
    },
    [log, flow, from, to],
  );
  return { found: data, ...news, counting: loading && data === null, problem, again };
}

const NO_NEWS = { share: 0, soFar: null };

export function FlowView({ place, session }: View) {
  const log = place.query.get("log") ?? "";
  const flow = place.query.get("flow") ?? "";
  const from = place.query.get("from") ?? "";
  const to = place.query.get("to") ?? "";
  const counted = useCounted(log, flow, { from, to });
  const packets = usePackets(log, flow, from, to);
  const { found, counting } = counted;
  const one = found?.flow;
  return (
    <>
      <p class="crumbs">
        <a href={link("/search", { log, from, to })}>Search</a> › flow
      </p>
      <h1>{one ? `${one.protocol} ${end(one.src, one.src_port)} → ${end(one.dst, one.dst_port)}` : "Flow"}</h1>
      {(from !== "" || to !== "") && (
        <p>
          Only its packets {from !== "" && `from ${said(from)} `}
          {to !== "" && `to ${said(to)} `}are counted and listed here:{" "}
          <a href={changed(place, { from: null, to: null })}>show the whole flow</a>.
        </p>
      )}
      <Loading when={counting && flow !== ""}>
        Counting its packets, {percent(counted.share)} of the log read
        {counted.soFar && `: ${counted.soFar.said(amounts)}`} …
      </Loading>
      <Problem of={counted.problem} again={counted.again} />
      {found && <Facts {...found} log={log} session={session} from={from} to={to} opened={place.query.has("label")} />}
      {found && session.recorders.length === 0 && (
        <p class="quiet">
          To change the granularity of such flows, start strata serve with the --socket of a running recording.
        </p>
      )}
      {!found && !counting && !counted.problem && flow !== "" && (
        <p>
          The search does not find this flow{from !== "" || to !== "" ? " in this time" : ""}: its totals are not known.
        </p>
      )}
      <Problem of={packets.problem} again={packets.again} />
      <section class="card" aria-label="Packets">
        <header>
          <h2>Packets</h2>
          <Downloads
            what={{ log, flow, from, to }}
            command={packets.command ? { pcapng: packets.command } : null}
            payload={session.roles.includes("payload")}
          />
        </header>
        <Loading when={packets.rows.length === 0 && packets.loading} />
        {!packets.loading && packets.rows.length === 0 && !packets.problem && <p>The flow has no packets in this time.</p>}
        {packets.rows.length > 0 && <Table packets={packets} open={(id) => go(packetLink(log, id, place.query))} />}
        {packets.rows.length >= PACKETS_MOST && packets.more && (
          <p class="quiet">
            The first {count(PACKETS_MOST)} packets are shown;{" "}
            <a href={changed(place, { from: packets.rows.at(-1)?.at ?? null })}>continue from there</a>.
          </p>
        )}
        <CoveredNote of={packets.covered} />
      </section>
    </>
  );
}

/** A time of the URL, as one reads it. */
function said(text: string): string {
  const at = moment(text);
  return at === null ? text : `${toLocal(at)} ${zone(at)}`;
}

function packetLink(log: string, packet: string, query: URLSearchParams): string {
  return link("/packet", {
    log,
    packet,
    flow: query.get("flow"),
    filter: query.get("filter"),
    from: query.get("from"),
    to: query.get("to"),
  });
}

function amounts(flow: Flow): string {
  return `${plural(flow.packets + flow.packets_back, "packet")}, ${bytes(flow.wire_bytes)}`;
}

interface FactsProps {
  flow: Identity;
  sums: Known<Flow>;
  /** Its class, as far as it was read: the label that somebody gives is likely another one. */
  mostly: string;
  log: string;
  session: Session;
  from: string;
  to: string;
  /** Whether it was opened to be labelled. */
  opened: boolean;
}

function Facts(props: FactsProps) {
  const { flow, log, session } = props;
  const mayChange = session.recorders.length > 0 && session.roles.includes("change") && !session.read_only;
  const recorder = session.recorders.find(({ log }) => log === props.log)?.id;
  const known = useLoad<Policy[]>(
    // A recorder that does not answer is reported elsewhere.
    async (signal) => (recorder ? call("policies", { path: { recorder }, signal }).catch(() => []) : []),
    [recorder],
  );
  const policies = (known.data ?? []).filter(({ match }) => flow.filter !== "" && match === flow.filter);
  const policy = (action: string) => link("/policies", { match: flow.filter, action, log });
  return (
    <>
      {shown(props.sums, (sums) => (
        <Sums of={sums} />
      ))}
      {(flow.src_owner || flow.dst_owner) && (
        <p>
          <Address of={flow.src} owner={flow.src_owner} /> → <Address of={flow.dst} owner={flow.dst_owner} />
        </p>
      )}
      {(flow.name || flow.community_id) && (
        <p>
          {flow.name && <b>{flow.name}</b>}
          {flow.name && flow.community_id && " · "}
          {flow.community_id && <small>Community ID {flow.community_id}</small>}
        </p>
      )}
      {policies.map(({ id, action, priority, packets }) => (
        <p key={id}>
          A policy for exactly this flow is in force: <b>{action}</b>, priority {priority}, applied to{" "}
          {plural(packets, "packet")}. <a href="/policies">Policies</a>
        </p>
      ))}
      {mayChange && flow.filter !== "" && flow.protocol !== "ethernet" && (
        <p class="actions">
          <a class="button" href={policy("header")}>
            Keep only its headers
          </a>
          <a class="button" href={policy("drop")}>
            Stop keeping it
          </a>
          <a class="button" href={policy("full")}>
            Always keep it whole
          </a>
        </p>
      )}
      {flow.protocol !== "ethernet" && flow.filter !== "" && (
        <LabelFlow {...props} />
      )}
    </>
  );
}

function Sums({ of: flow }: { of: Flow }) {
  const all = flow.packets + flow.packets_back;
  return (
    <>
      <div class="figures">
        <Big value={count(all)} of={`packet${all === 1 ? "" : "s"}, ${count(flow.packets_back)} back`} />
        <Big value={bytes(flow.wire_bytes)} of="on the wire" />
        <Big value={bytes(flow.kept_bytes)} of="kept" />
        <Big value={duration(seconds(flow))} of={`from ${dayTime(nanoseconds(flow.first))}`} />
      </div>
      <p class="classes">
        {flow.classes.map(({ class: name, packets }, index) => (
          <span key={name}>
            {index > 0 && ", "}
            <ClassName of={name} />
            {flow.classes.length > 1 && <> {plural(packets, "packet")}</>}
          </span>
        ))}
        {flow.score !== null && <>; highest mean share in the trees: {percent(flow.score)}</>}
      </p>
    </>
  );
}

/** Text of a command line, in quotes where a shell needs them. */
function quoted(text: string): string {
  return /^[\w./:=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** Says what the flow is, to train a model on: here, if the server keeps labels, else in a shell. */
function LabelFlow(props: FactsProps) {
  const { flow, session, opened } = props;
  const [label, setLabel] = useState(props.mostly === "benign" ? "attack" : "benign");
  const [state, setState] = useState<{ done: Changed | null; problem: Error | null; busy: boolean }>(UNLABELLED);
  const path = session.logs.find(({ id }) => id === props.log)?.path ?? "LOG";
  const may = session.keeps && session.roles.includes("change") && !session.read_only;
  const give = async (event: Event) => {
    event.preventDefault();
    setState({ ...UNLABELLED, busy: true });
    try {
      const times = { ...(props.from && { from: props.from }), ...(props.to && { to: props.to }) };
      const body = { flow: flow.id, label, ...times };
      setState({ ...UNLABELLED, done: await call("label", { path: { log: props.log }, body }) });
    } catch (error) {
      setState({ ...UNLABELLED, problem: asRefused(error) });
    }
  };
  const which = flow.community_id ? `--community-id ${flow.community_id}` : quoted(flow.filter);
  const options = `--label ${quoted(label || "attack")} -o labels.json ${which}`;
  return (
    <details class="label-flow" open={opened}>
      <summary>Label this flow, to train on</summary>
      <form onSubmit={give}>
        <Labelled label="It is" hint="benign, attack, or the name of a class such as scan">
          <input required value={label} maxLength={64} onInput={(event) => setLabel(event.currentTarget.value)} />
        </Labelled>
        {may && (
          <button type="submit" class="main" disabled={state.busy || label.trim() === ""}>
            Label
          </button>
        )}
      </form>
      <Loading when={state.busy}>Reading the log …</Loading>
      <Problem of={state.problem} />
      <Done of={state.done} undone={() => setState(UNLABELLED)} />
      {may ? (
        <p class="quiet">Another label replaces this one. strata train {path} --labels FILE trains a model with it.</p>
      ) : (
        <>
          <Command text={`strata labels add ${quoted(path)} ${options}`} />
          <p class="quiet">
            {session.keeps
              ? "Only users with the role change can label flows here."
              : "To label here, start strata serve with --state DIR."}{" "}
            Then strata train {path} --labels labels.json -o model.json trains a model with it.
          </p>
        </>
      )}
    </details>
  );
}

const UNLABELLED = { done: null, problem: null, busy: false };

interface Packets {
  rows: Packet[];
  more: boolean;
  loading: boolean;
  command: string;
  covered: Covered | null;
  problem: Error | null;
  next: () => void;
  again: () => void;
}

/** Packets by cursor: the next page when the end comes into sight. */
function usePackets(log: string, flow: string, from: string, to: string): Packets {
  const key = [log, flow, from, to].join("\n");
  const [state, setState] = useState<Omit<Packets, "next" | "again">>(EMPTY);
  const cursor = useRef<string | null>(null);
  const control = useRef(new AbortController());
  const busy = useRef(false);
  const load = useCallback(async () => {
    if (busy.current) return;
    busy.current = true;
    const { signal } = control.current;
    setState((before) => ({ ...before, loading: true }));
    try {
      const query = { from, to, limit: PAGE, ...(cursor.current ? { cursor: cursor.current } : {}) };
      const page = await call("flowPackets", { path: { log, flow }, query, signal });
      cursor.current = page.next;
      setState((before) => ({
        rows: [...before.rows, ...page.packets],
        more: page.next !== null,
        loading: false,
        command: page.command ?? "",
        covered: before.covered?.complete === false ? before.covered : page.covered,
        problem: null,
      }));
    } catch (error) {
      if (!signal.aborted) setState((before) => ({ ...before, loading: false, problem: asRefused(error) }));
    } finally {
      if (!signal.aborted) busy.current = false;
    }
  }, [key]);
  useEffect(() => {
    control.current = new AbortController();
    cursor.current = null;
    busy.current = false;
    setState(EMPTY);
    void load();
    return () => control.current.abort();
  }, [load]);
  const next = useCallback(() => {
    if (cursor.current !== null) void load();
  }, [load]);
  return { ...state, next, again: load };
}

const EMPTY = { rows: [], more: false, loading: true, command: "", covered: null, problem: null };

function Table(props: { packets: Packets; open: (id: string) => void }) {
  const { rows, more, next } = props.packets;
  const narrow = useMedia("(max-width: 640px)");
  const first = rows[0];
  const start = first ? nanoseconds(first.at) : 0n;
  const all: Column<Packet>[] = [
    { key: "at", name: `Time (${zone(start)})`, width: 9, cell: (one) => time(nanoseconds(one.at), 6) },
    {
      key: "direction",
      name: "Dir.",
      width: 2.2,
      cell: (one) => (one.direction === "there" ? <span title={`from ${one.src}`}>→</span> : <span title={`from ${one.src}`}>←</span>),
    },
    { key: "summary", name: "What", width: 11, grow: 2, cell: (one) => one.summary },
    { key: "wire", name: "Bytes", width: 5, number: true, cell: (one) => bytes(one.wire_bytes) },
    { key: "kept", name: "Kept", width: 5, number: true, cell: (one) => bytes(one.kept_bytes) },
    { key: "how", name: "How", width: 4.5, cell: (one) => kept(one.granularity) },
    { key: "class", name: "Class", width: 5.8, cell: (one) => <ClassName of={one.class ?? "unclassified"} /> },
    { key: "why", name: "Why", width: 9, grow: 3, cell: (one) => <span title={one.words}>{one.words}</span> },
  ];
  const columns = narrow ? all.filter(({ key }) => ["direction", "summary", "kept"].includes(key)) : all;
  const want = useCallback(
    (_: number, to: number) => {
      if (to >= rows.length - 20 && rows.length < PACKETS_MOST) next();
    },
    [rows.length, next],
  );
  return (
    <>
      <VirtualTable
        label="Packets of the flow"
        columns={columns}
        total={rows.length}
        row={(index) => rows[index]}
        want={want}
        open={(row) => props.open(row.id)}
        height={560}
        remember={`packets ${location.search}`}
      />
      <p class="quiet">
        {plural(rows.length, "packet")}
        {more ? " so far; scroll for more" : ""}
      </p>
    </>
  );
}
