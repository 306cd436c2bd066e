// Storage and models: what is held and for how long, what goes next, whether it is whole.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, nanoseconds, type Log, type Schemas } from "../api/client";
import { verify } from "../api/stream";
import { bytes, count, dayTime, duration, percent, plural } from "../format";
import { asRefused, useLoad } from "../hooks";
import type { View } from "../main";
import { changed, go, link, type Place } from "../router";
import { useDark } from "../theme";
import { Big, Card, Command, Labelled, Loading, Meter, Notice, Problem, Rows, Select } from "../ui/bits";
import { Swatch } from "../ui/chart";
import { colour } from "../ui/colour";
import { Recordings } from "./recordings";

type Held = Schemas["Storage"];

export function Storage({ place, session }: View) {
  const log = place.query.get("log") ?? session.logs[0]?.id ?? "";
  const days = place.query.get("days") ?? "";
  const size = place.query.get("size") ?? "";
  const storage = useLoad<Held | null>(
    async (signal) => {
      if (log === "") return null;
      const query = {
        ...(days ? { max_age_days: Number(days) } : {}),
        ...(size ? { max_bytes: Math.round(Number(size) * 1e9) } : {}),
      };
      return call("storage", { path: { log }, query, signal });
    },
    [log, days, size],
    [log],
  );
  const logs = useLoad<Log[]>((signal) => call("logs", { signal }), []);
  if (session.logs.length === 0) {
    return <Notice kind="info">No log is open: start strata serve with the directory of a log.</Notice>;
  }
  const known = logs.data?.find(({ id }) => id === log);
  const held = storage.data;
  return (
    <>
      <h1>Storage and models</h1>
      {session.logs.length > 1 && (
        <Select
          label="Log"
          is={log}
          of={session.logs.map(({ id, path }) => [id, path] as const)}
          choose={(log) => go(changed(place, { log }))}
        />
      )}
      <Problem of={logs.problem} again={logs.again} />
      {known && <State of={known} />}
      <Problem of={storage.problem} again={storage.again} />
      <Loading when={storage.loading && !held} />
      {held && (
        <>
          <Disk of={held} />
          <div class="cards">
            <HeldByClass of={held} log={log} />
            <ByHour of={held} />
            <Next of={held} place={place} />
            <Verify key={log} log={log} />
          </div>
        </>
      )}
      <Recordings log={log} />
      <Audit />
    </>
  );
}

const STATES: Record<Log["state"], string> = {
  recording: "being recorded",
  closed: "closed",
  interrupted: "its recording was interrupted",
  empty: "empty",
  unreadable: "cannot be read",
};

function State({ of: log }: { of: Log }) {
  return (
    <>
      <p>
        <code>{log.path}</code>, {STATES[log.state]}
        {log.first && log.last && (
          <>
            : {plural(log.packets, "packet")} from {dayTime(nanoseconds(log.first))} to {dayTime(nanoseconds(log.last))}
          </>
        )}
      </p>
      {log.problem && <Notice kind="bad">{log.problem}</Notice>}
      {log.damaged.length > 0 && (
        <Notice kind="bad">
          {plural(log.damaged.length, "damaged place")}; the rest is readable. {log.damaged.slice(0, 5).join("; ")}
        </Notice>
      )}
      {log.encrypted_packets > 0 && (
        <Notice kind="warn">
          {plural(log.encrypted_packets, "packet")} encrypted: start strata serve with the key to read them.
        </Notice>
      )}
    </>
  );
}

function Disk({ of: held }: { of: Held }) {
  const { disk } = held;
  return (
    <div class="figures">
      <Big value={bytes(held.stored_bytes)} of="in this log" />
      {disk && (
        <Big
          value={bytes(disk.free_bytes)}
          of={`free of ${bytes(disk.total_bytes)} on the log's file system, ${percent(disk.total_bytes > 0 ? 1 - disk.free_bytes / disk.total_bytes : 1)} used`}
        />
      )}
      {disk && disk.seconds_to_full !== null && (
        <Big
          value={duration(disk.seconds_to_full)}
          of="until the disk is full"
          kind={disk.seconds_to_full < 86_400 ? "warn" : "good"}
        />
      )}
      {held.compacting && <Big value="compacting" of={held.compacting} />}
    </div>
  );
}

function HeldByClass({ of: held, log }: { of: Held; log: string }) {
  return (
    <Card title="Stored data by class">
      {held.held.length === 0 ? (
        <p>Nothing yet: strata compact sorts a log by class, so that each class can have its own retention time.</p>
      ) : (
        <Rows
          label="Stored data by class"
          head={["Class", { text: "Days", number: true }, "Since", { text: "Size", number: true }, { text: "Per day", number: true }]}
        >
          {held.held.map((one) => (
            <tr key={one.class}>
              <th scope="row">{one.class === "all" ? "not yet compacted" : one.class}</th>
              <td class="number">{one.days < 0.05 ? "< 0.1" : one.days.toFixed(1)}</td>
              <td>{dayTime(nanoseconds(one.oldest))}</td>
              <td class="number">{bytes(one.bytes)}</td>
              <td class="number">{bytes(one.bytes_per_day)}</td>
            </tr>
          ))}
        </Rows>
      )}
      <p>
        <a href={link("/search", { log, sort: "kept_bytes", order: "desc" })}>Flows that use the most disk space</a>
      </p>
    </Card>
  );
}

const TIERS: Record<string, string> = { blocks: "block files", compacted: "compacted", moved: "moved" };
/** Hours shown; the newest. */
const HOURS = 48;

function ByHour({ of: held }: { of: Held }) {
  const dark = useDark();
  const hours = new Map<string, Held["hours"]>();
  for (const one of held.hours) hours.set(one.hour, [...(hours.get(one.hour) ?? []), one]);
  const shown = [...hours.entries()].sort(([a], [b]) => (a < b ? 1 : -1)).slice(0, HOURS);
  const most = Math.max(1, ...shown.map(([, all]) => all.reduce((sum, { bytes }) => sum + bytes, 0)));
  const classes = [...new Set(held.hours.map((one) => one.class))];
  const hue = (name: string) => (name === "all" ? "var(--quiet)" : colour(name, "full", dark));
  return (
    <Card title="By hour (UTC)">
      <ul class="legend">
        {classes.map((name) => (
          <li key={name}>
            <Swatch colour={hue(name)} /> {name === "all" ? "not yet compacted" : name}
          </li>
        ))}
      </ul>
      <ul class="top-list hours">
        {shown.map(([hour, all]) => {
          const size = all.reduce((sum, { bytes }) => sum + bytes, 0);
          const tiers = [...new Set(all.map(({ tier }) => TIERS[tier] ?? tier))].join(", ");
          return (
            <li key={hour}>
              <span>{hour.replace("T", " ")} h</span>
              <span class="meter" aria-hidden="true">
                {all.map((one, index) => (
                  <span
                    key={index}
                    class="part"
                    style={{ width: `${(one.bytes / most) * 100}%`, background: hue(one.class) }}
                  />
                ))}
              </span>
              <span class="number">{bytes(size)}</span>
              <small>
                {tiers}
                {all.some((one) => one.encrypted) && ", encrypted"}
              </small>
            </li>
          );
        })}
      </ul>
    </Card>
  );
}

/** Pieces listed. */
const PIECES = 12;

function Next({ of: held, place }: { of: Held; place: Place }) {
  const set = (name: string) => (event: Event) =>
    go(changed(place, { [name]: (event.currentTarget as HTMLInputElement).value }), true);
  return (
    <Card title="To be deleted next">
      <div class="row">
        <Labelled label="Older than (days)">
          <input type="number" min={0} step="any" value={place.query.get("days") ?? ""} onChange={set("days")} />
        </Labelled>
        <Labelled label="Log larger than (GB)">
          <input type="number" min={0} step="any" value={place.query.get("size") ?? ""} onChange={set("size")} />
        </Labelled>
      </div>
      {held.next.pieces.length === 0 ? (
        <p>Nothing.</p>
      ) : (
        <>
          <p>
            {plural(held.next.pieces.length, "piece")}, {bytes(held.next.bytes)}, in this order:
          </p>
          <ol class="pieces">
            {held.next.pieces.slice(0, PIECES).map((piece, index) => (
              <li key={index}>
                {piece.what} <span class="number">{bytes(piece.bytes)}</span>
                {piece.from && <small> from {dayTime(nanoseconds(piece.from))}</small>}
              </li>
            ))}
          </ol>
          {held.next.pieces.length > PIECES && <p class="quiet">and {held.next.pieces.length - PIECES} more</p>}
        </>
      )}
      <Command text={held.next.command} />
    </Card>
  );
}

type Verified = Schemas["VerifyEvent"];

/** How far it is, or what it has found at its end. */
type Verifying = { share: number } | { done: Verified } | null;

function Verify({ log }: { log: string }) {
  const [state, setState] = useState<Verifying>(null);
  const [problem, setProblem] = useState<Error | null>(null);
  const control = useRef<AbortController | null>(null);
  useEffect(() => () => control.current?.abort(), []);
  const running = state !== null && "share" in state;
  const done = state !== null && "done" in state ? state.done : null;
  const begin = async () => {
    const mine = new AbortController();
    control.current = mine;
    setProblem(null);
    setState({ share: 0 });
    try {
      setState({ done: await verify(log, mine.signal, (share) => setState({ share })) });
    } catch (error) {
      setState(null);
      if (!mine.signal.aborted) setProblem(asRefused(error));
    }
  };
  return (
    <Card title="Verify all checksums">
      <p class="actions">
        <button type="button" disabled={running} onClick={begin}>
          Verify
        </button>
        {running && (
          <button type="button" onClick={() => control.current?.abort()}>
            Stop
          </button>
        )}
      </p>
      {running && (
        <p role="status">
          <Meter share={state.share} label="Verified" /> {percent(state.share)} read
        </p>
      )}
      {done && (done.damaged?.length ?? 0) === 0 && (
        <Notice kind="good">
          Intact: {plural(done.files ?? 0, "file")}, {bytes(done.bytes ?? 0)}.
        </Notice>
      )}
      {done && (done.damaged?.length ?? 0) > 0 && (
        <>
          <Notice kind="bad">{plural(done.damaged?.length ?? 0, "damaged place")}; the rest is readable.</Notice>
          <ul>
            {done.damaged?.slice(0, 100).map((place) => (
              <li key={place}>{place}</li>
            ))}
          </ul>
        </>
      )}
      <Problem of={problem} />
    </Card>
  );
}

function Audit() {
  const audit = useLoad((signal) => call("audit", { signal }), []);
  const events = audit.data ?? [];
  return (
    <Card title="Changes and views of payload" side={<button type="button" onClick={audit.again}>Refresh</button>}>
      <Problem of={audit.problem} again={audit.again} />
      {events.length === 0 && !audit.loading && !audit.problem && <p>None since strata serve was started.</p>}
      <ol class="events">
        {events.slice(0, 50).map((event, index) => (
          <li key={index}>
            <time dateTime={event.at}>{dayTime(nanoseconds(event.at))}</time>{" "}
            <span>
              <b>{event.what}</b> {event.why && <>({event.why})</>} <small>by {event.who}</small>
            </span>
          </li>
        ))}
      </ol>
      {events.length > 50 && <p class="quiet">The latest 50 of {count(events.length)}.</p>}
    </Card>
  );
}
