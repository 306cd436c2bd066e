// Now: what arrives, what is kept of it, what is lost, and what to change.
import { useEffect, useMemo, useState } from "preact/hooks";
import { call, nanoseconds, type Event, type Recorder, type RecorderTick, type Series, type Session } from "../api/client";
import { byteRate, bytes, count, duration, percent, plural, rate, time } from "../format";
import { useKept, useLoad } from "../hooks";
import { POINTS, useLive } from "../live";
import type { View } from "../main";
import { changed, go, link } from "../router";
import { useDark } from "../theme";
import { Big, Card, Choice, CoveredNote, Loading, Meter, Notice, Problem, Rows } from "../ui/bits";
import { Chart } from "../ui/chart";
import { type Amount, fromSeries, fromTicks, joined, lines, marks, type Points, total } from "../ui/series";
import { ModeDialog } from "./mode";
import { Talkers } from "./talkers";

const AMOUNTS = [
  ["captured_bytes", "Bytes"],
  ["kept_bytes", "Kept"],
  ["packets", "Packets"],
] as const;
const SPANS = [
  ["300", "5 min"],
  ["900", "15 min"],
] as const;
/** What the recorder no longer knows, the log does. */
const OLDER = [
  ["3600", "1 h"],
  ["21600", "6 h"],
  ["86400", "24 h"],
] as const;

export function Now({ place, session }: View) {
  const live = useLive();
  const ids = session.recorders.map(({ id }) => id);
  const asked = place.query.get("recorder");
  const one = asked !== null && ids.includes(asked) ? asked : null;
  if (ids.length === 0) {
    return (
      <>
        <h1>Now</h1>
        <Notice kind="info">
          No running recording is connected. Start strata serve with --socket, or with the log of a running recording;
          the contents of logs are under <a href="/search">Search</a>.
        </Notice>
      </>
    );
  }
  const shown = one ? [one] : ids;
  return (
    <>
      <h1 class="unseen">Now</h1>
      {!live.connected && live.tick && (
        <Notice kind="warn">The connection to strata serve is interrupted; trying again. The values shown are old.</Notice>
      )}
      {ids.length > 1 && (
        <Choice
          label="Recordings"
          of={[["", "All"] as const, ...session.recorders.map((one) => [one.id, named(one, session)] as const)]}
          is={one ?? ""}
          choose={(id) => go(changed(place, { recorder: id }))}
        />
      )}
      <div class={shown.length > 1 ? "recorders many" : "recorders"}>
        {shown.map((id) => {
          const known = session.recorders.find((recorder) => recorder.id === id);
          return (
            <OneRecorder
              key={id}
              id={id}
              name={named(known, session)}
              log={known?.log ?? null}
              mayChange={session.roles.includes("change") && !session.read_only}
              tick={live.tick?.recorders.find((recorder) => recorder.id === id) ?? null}
              past={live.past.get(id) ?? NONE}
              fresh={live.events.get(id) ?? NONE}
              details={shown.length === 1}
            />
          );
        })}
      </div>
    </>
  );
}

/** A recorder by the directory of its log, else by what tells its socket from others: its file, or its directory. */
function named(recorder: Session["recorders"][number] | undefined, session: Session): string {
  const log = session.logs.find(({ id }) => id === recorder?.log)?.path.split("/").filter((part) => part !== "").at(-1);
  if (log !== undefined) return log;
  const socket = recorder?.socket ?? "recorder";
  const parts = socket.split("/").filter((part) => part !== "");
  const last = parts.at(-1) ?? socket;
  return last === "control.sock" ? (parts.at(-2) ?? last) : last.replace(/\.sock(et)?$/, "");
}

const NONE: never[] = [];

/** How often the chart is drawn while its whole axis passes by; at most once per tick. */
const DRAWINGS = 150;

/** Of the axis, when a recording has just begun. */
const LEAST_SECONDS = 60;

interface OneProps {
  id: string;
  name: string;
  log: string | null;
  mayChange: boolean;
  tick: RecorderTick | null;
  past: { at: number; tick: RecorderTick }[];
  /** Events since the page is open. */
  fresh: Event[];
  details: boolean;
}

function OneRecorder(props: OneProps) {
  const { id, tick } = props;
  const dark = useDark();
  const [amount, setAmount] = useKept<Amount>("now.amount", "captured_bytes");
  const [span, setSpan] = useKept<string>("now.span", "300");
  const [dialog, setDialog] = useState(false);
  // After an interruption the server knows what came meanwhile.
  const up = tick?.up ?? false;
  const history = useLoad<Series>((signal) => call("history", { path: { recorder: id }, signal }), [id, up], [id]);
  const known = useLoad<Event[]>((signal) => call("events", { path: { recorder: id }, signal }), [id, up], [id]);
  const events = useMemo(() => merged(known.data ?? [], props.fresh), [known.data, props.fresh]);
  const spans: readonly (readonly [string, string])[] = props.log === null ? SPANS : [...SPANS, ...OLDER];
  const shown = spans.some(([seconds]) => seconds === span) ? span : "300";
  const older = useOlder(props.log, Number(shown));
  // A canvas is drawn anew only when it has moved by some pixels: that is most of what an open page costs.
  const seconds = Number(shown);
  const last = props.past.at(-1)?.at ?? 0;
  const first = history.data?.t[0] ?? props.past[0]?.at ?? last;
  const axis = Math.min(seconds, Math.max(last - first, LEAST_SECONDS));
  const turn = Math.floor(last / (axis / DRAWINGS));
  const chart = useMemo(() => {
    const before = history.data ? fromSeries(history.data) : null;
    const points = older.asked
      ? (older.points ?? { t: [], of: [] })
      : joined(before, fromTicks(props.past.slice(-seconds - 1)), seconds);
    return <Traffic name={props.name} points={points} events={events} amount={amount} seconds={seconds} dark={dark} />;
  }, [turn, history.data, older.asked, older.points, events, amount, seconds, dark, props.name, props.past.length > 1]);
  const list = useMemo(
    () => <Events id={id} events={events} mayChange={props.mayChange} again={known.again} />,
    [id, events, props.mayChange, known.again],
  );
  return (
    <article class="recorder" aria-label={`Recording ${props.name}`}>
      <header class="recorder-head">
        <h2>{props.name}</h2>
        {tick && !tick.up && <Notice kind="bad">Does not answer: {tick.error ?? "no reason known"}</Notice>}
        {tick && <Mode tick={tick} mayChange={props.mayChange} change={() => setDialog(true)} />}
      </header>
      {dialog && <ModeDialog recorder={id} now={tick?.mode ?? ""} close={() => setDialog(false)} />}
      {!tick && <Loading when>Waiting for the recording …</Loading>}
      {tick && <Figures tick={tick} />}
      <Problem of={history.problem} again={history.again} />
      <Problem of={older.problem} />
      <section class="card" aria-label="Traffic">
        <header>
          <Choice label="Amount" of={AMOUNTS} is={amount} choose={setAmount} />
          <Choice label="Time shown" of={spans} is={shown} choose={setSpan} />
          {props.log && <a href={link("/search", { log: props.log })}>Search its log</a>}
          <Loading when={older.loading}>Reading the log …</Loading>
        </header>
        {chart}
        <CoveredNote of={older.covered} />
      </section>
      <div class="cards">
        {tick && <Losses tick={tick} />}
        {tick && <Resources tick={tick} />}
        {list}
        {props.log !== null && props.details && <Talkers log={props.log} />}
        {props.details && <Fit recorder={id} up={up} />}
      </div>
    </article>
  );
}

interface TrafficProps {
  name: string;
  points: Points;
  events: Event[];
  amount: Amount;
  seconds: number;
  dark: boolean;
}

function Traffic({ name, points, events, amount, seconds, dark }: TrafficProps) {
  const drawn = lines(points, amount, dark);
  if (amount === "captured_bytes") {
    drawn.push({
      name: "kept in all",
      colour: dark ? "#f2f5f7" : "#11161b",
      values: total(points, "kept_bytes"),
      over: true,
    });
  }
  const end = points.t.at(-1) ?? Date.now() / 1000;
  return (
    <Chart
      label={`Traffic of ${name}`}
      t={points.t}
      lines={drawn}
      format={amount === "packets" ? rate : byteRate}
      marks={marks(events)}
      range={[Math.max(end - seconds, Math.min(points.t[0] ?? end, end - LEAST_SECONDS)), end]}
    />
  );
}

/** How often older series are read anew. */
const OLDER_MS = 60_000;
const OLDER_POINTS = 300;

/** Series of the log, where a longer time is shown than the recorder knows. */
function useOlder(log: string | null, seconds: number) {
  const asked = log !== null && seconds > POINTS;
  const series = useLoad<Series | null>(
    async (signal) => {
      if (log === null || seconds <= POINTS) return null;
      const from = String(Math.floor(Date.now() / 1000) - seconds);
      return call("series", { path: { log }, query: { from, points: OLDER_POINTS }, signal });
    },
    [log, asked ? seconds : 0],
  );
  const { again } = series;
  useEffect(() => {
    if (!asked) return;
    const timer = setInterval(() => {
      if (!document.hidden) again();
    }, OLDER_MS);
    return () => clearInterval(timer);
  }, [asked, again]);
  const points = useMemo(() => (series.data ? fromSeries(series.data) : null), [series.data]);
  const covered = asked && series.data && !series.data.covered.complete ? series.data.covered : null;
  return { asked, points, covered, loading: asked && series.loading && !series.data, problem: series.problem };
}

function merged(known: Event[], fresh: Event[]): Event[] {
  const all = new Map<string, Event>();
  for (const event of [...fresh, ...known]) all.set(event.id, event);
  return [...all.values()].sort((a, b) => (a.at < b.at ? 1 : -1)).slice(0, 200);
}

function Mode(props: { tick: RecorderTick; mayChange: boolean; change: () => void }) {
  const { mode, asked_mode, mode_seconds_left } = props.tick;
  return (
    <p class="mode">
      Mode <b>{mode}</b>
      {mode_seconds_left != null && <> for another {duration(Math.max(mode_seconds_left, 0))}</>}
      {mode !== asked_mode && <> instead of {asked_mode}: a resource is short, see Resources</>}{" "}
      {props.mayChange && (
        <button type="button" onClick={props.change}>
          Change mode
        </button>
      )}
    </p>
  );
}

function Figures({ tick }: { tick: RecorderTick }) {
  const lost = tick.lost.reduce((sum, place) => sum + place.packets, 0);
  const losing = tick.lost.reduce((sum, place) => sum + place.packets_per_second, 0);
  const share = tick.bytes_per_second > 0 ? tick.kept_bytes_per_second / tick.bytes_per_second : null;
  return (
    <div class="figures">
      <Big value={rate(tick.packets_per_second)} of="packets" />
      <Big value={byteRate(tick.bytes_per_second)} of="on the wire" />
      <Big
        value={byteRate(tick.kept_bytes_per_second)}
        of={share === null ? "kept" : `kept, ${percent(Math.min(share, 1))}`}
      />
      <Big
        value={losing > 0 ? rate(losing) : count(lost)}
        of={losing > 0 ? "packets being lost" : lost > 0 ? "packets lost, none now" : "packets lost"}
        kind={losing > 0 ? "bad" : lost > 0 ? "warn" : "good"}
      />
    </div>
  );
}

/** When losses grew, as far as somebody watched. */
function when({ first, last }: RecorderTick["lost"][number]): string {
  if (last === null) return "before strata serve connected";
  const at = time(nanoseconds(last), 0);
  if (first === null) return `last at ${at}`;
  return first === last ? `at ${at}` : `${time(nanoseconds(first), 0)} to ${at}`;
}

const NOT_KEPT: Record<string, string> = {
  sampled_out: "sampled out: a mode or policy keeps only a sample",
  discarded: "dropped by a mode or policy",
  duplicates: "copies of packets that were captured before",
};

/** What nothing is in the log of, though it arrived, and was meant to be so. */
function NotKept({ tick }: { tick: RecorderTick }) {
  const notKept = tick.not_kept.filter(({ packets }) => packets > 0);
  const uncompared = tick.not_kept.reduce((sum, { uncompared_packets }) => sum + uncompared_packets, 0);
  return (
    <>
      {notKept.map(({ how, packets, bytes: size, packets_per_second }) => (
        <p key={how}>
          Deliberately not kept: <b>{plural(packets, "packet")}</b> (
          {percent(tick.captured_packets > 0 ? packets / tick.captured_packets : 0)} of those captured, {bytes(size)}),{" "}
          {NOT_KEPT[how] ?? how}
          {packets_per_second > 0 ? `; now ${rate(packets_per_second)}, in mode ${tick.mode}` : "; none now"}. Search and
          downloads do not include these packets.
        </p>
      ))}
      {uncompared > 0 && (
        <p>
          Kept, but some may be copies: <b>{plural(uncompared, "packet")}</b> could not be compared with all packets
          captured before.
        </p>
      )}
    </>
  );
}

function Losses({ tick }: { tick: RecorderTick }) {
  const places = tick.lost.filter((place) => place.packets > 0);
  // What was lost before it reached Strata is not among those captured.
  const before = places.reduce((sum, { place, packets }) => sum + (place === "strata" ? 0 : packets), 0);
  const all = tick.captured_packets + before;
  return (
    <Card title="Losses">
      {places.length === 0 ? (
        <p>No packets were lost.</p>
      ) : (
        <Rows
          label="Losses"
          head={["Where", { text: "Packets", number: true }, { text: "Now", number: true }, "When", "What to do"]}
        >
          {places.map((place) => (
            <tr key={`${place.place} ${place.counter}`}>
              <th scope="row">
                {place.place} <small>{place.counter}</small>
              </th>
              <td class="number">
                {count(place.packets)} <small>{percent(all > 0 ? place.packets / all : 0)}</small>
              </td>
              <td class="number">{place.packets_per_second > 0 ? rate(place.packets_per_second) : "none"}</td>
              <td>{when(place)}</td>
              <td class="said">{place.advice}</td>
            </tr>
          ))}
        </Rows>
      )}
      <NotKept tick={tick} />
    </Card>
  );
}

/** What a recording can run short of, by the names that `strata status` and the configuration have. */
const RESOURCES: Record<string, string> = {
  disk_space: "share of the log's file system in use, as in df",
  blocks: "share of the memory blocks that wait for the disk",
  ring: "drops by the kernel since the last reading, because the ring was full",
  cpu: "share of a core used by the busiest worker",
  ring_fill: "share of the fullest ring waiting for its worker",
  disk_rate: "share of the time that the disk's write queue is full",
  rdma: "share of RDMA messages lost: sent again, skipped or missing at the relay",
  bandwidth: "share of the rate allowed to the disk or the relay",
};

function Resources({ tick }: { tick: RecorderTick }) {
  const { cpu, shed } = tick;
  const known = tick.resources.filter(({ used, seconds_to_full }) => used !== null || seconds_to_full != null);
  return (
    <Card title="Resources">
      <dl class="resources">
        {known.map(({ name, used, short_at, degradation_steps, seconds_to_full }) => (
          <div key={name}>
            <dt>
              {name.replaceAll("_", " ")} <small>{RESOURCES[name]}</small>
            </dt>
            <dd>
              {used === null ? (
                <span class="quiet">not known</span>
              ) : name === "ring" ? (
                <span class={used > 0 ? "bad" : ""}>{used > 0 ? "drops" : "no drops"}</span>
              ) : (
                <>
                  <Meter share={used} mark={short_at} bad={degradation_steps > 0} label={name.replaceAll("_", " ")} /> {percent(used)}
                </>
              )}
              {seconds_to_full != null && <small>full in {duration(seconds_to_full)}</small>}
              {degradation_steps > 0 && <small class="bad">short: mode degraded by {plural(degradation_steps, "step")}</small>}
            </dd>
          </div>
        ))}
        {shed && shed.times > 0 && (
          <div>
            <dt>payload</dt>
            <dd class={shed.now ? "bad" : ""}>
              {shed.now ? `at most ${shed.bytes} bytes of each packet, because packets were lost` : "captured whole"}
              <small>
                given up {shed.times === 1 ? "once" : plural(shed.times, "time")}, for {duration(shed.seconds)} in all
              </small>
            </dd>
          </div>
        )}
        {cpu && (
          <div>
            <dt>CPU budget</dt>
            <dd>
              <Meter share={cpu.used / cpu.budget} bad={cpu.flow_share < 1} label="CPU budget" />{" "}
              {percent(cpu.used)} of a core
              {cpu.flow_share < 1 && <small class="bad">{percent(cpu.flow_share)} of flows captured</small>}
            </dd>
          </div>
        )}
      </dl>
    </Card>
  );
}

function Events(props: { id: string; events: Event[]; mayChange: boolean; again: () => void }) {
  const [problem, setProblem] = useState<Error | null>(null);
  const acknowledge = async (event: Event) => {
    try {
      await call("acknowledge", { path: { recorder: props.id, event: event.id }, body: {} });
      setProblem(null);
      props.again();
    } catch (error) {
      setProblem(error as Error);
    }
  };
  const open = props.events.filter((event) => event.alert && !event.acknowledged).length;
  return (
    <Card title="Events" side={open > 0 && <span class="badge bad">{plural(open, "new alert")}</span>}>
      <Problem of={problem} />
      {props.events.length === 0 && <p>None yet.</p>}
      <ol class="events">
        {props.events.slice(0, 30).map((event) => (
          <li key={event.id} class={event.alert && !event.acknowledged ? "alert" : ""}>
            <time dateTime={event.at}>{time(nanoseconds(event.at), 0)}</time>{" "}
            <span>
              <b>{event.what}</b> {event.why && <>({event.why})</>} <small>by {event.who}</small>
              {event.acknowledged && <small>, acknowledged by {event.acknowledged.who}</small>}
            </span>
            {event.alert && !event.acknowledged && props.mayChange && (
              <button type="button" onClick={() => acknowledge(event)}>
                Acknowledge
              </button>
            )}
          </li>
        ))}
      </ol>
    </Card>
  );
}

interface Drift {
  samples: number;
  score_index: number;
  bound: number;
  fits: boolean | null;
  features: { name: string; index: number }[];
}
interface Detail {
  asked: string;
  budget: string;
  payload: { result: string; packets: number; bytes: number }[];
}

/** How often the page asks again for what changes slowly. */
const SLOWLY_MS = 15_000;

/** The model against the traffic, and the budget of detail: of the whole status, now and then. */
function Fit(props: { recorder: string; up: boolean }) {
  const recorders = useLoad<Recorder[]>((signal) => call("recorders", { signal }), [props.up], [props.recorder]);
  const { again } = recorders;
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) again();
    }, SLOWLY_MS);
    return () => clearInterval(timer);
  }, [again]);
  const status = recorders.data?.find(({ id }) => id === props.recorder)?.status;
  const drift = status?.["drift"] as Drift | null | undefined;
  const detail = status?.["detail"] as Detail | null | undefined;
  const given = detail?.payload.find(({ result }) => result === "given")?.bytes;
  const offered = detail?.payload.find(({ result }) => result === "offered")?.bytes;
  return (
    <Card title="Model">
      {!drift && <p>The fit of the model is not known: its file has no statistics of its training data.</p>}
      {drift && (
        <p>
          {drift.fits === null
            ? `Too few packets to judge the fit of the model: ${count(drift.samples)} evaluated.`
            : drift.fits
              ? "The model fits this traffic."
              : "The traffic is unlike the training data of the model: train it again, or learn a new model (strata learn)."}{" "}
          <small>
            drift index {drift.score_index.toFixed(2)}, limit {drift.bound.toFixed(2)}
          </small>
        </p>
      )}
      {drift && drift.fits === false && (
        <p>
          Features that changed most:{" "}
          {drift.features.map((feature) => `${feature.name} (${feature.index.toFixed(2)})`).join(", ")}
        </p>
      )}
      {detail && (
        <p>
          Budget of detail <b>{detail.budget}</b>
          {detail.budget !== detail.asked && <> instead of {detail.asked}</>}
          {given !== undefined && offered !== undefined && offered > 0 && (
            <>
              : {bytes(given)} of {bytes(offered)} of payload kept ({percent(given / offered)})
            </>
          )}
        </p>
      )}
    </Card>
  );
}
