// From when to when: typed, by a click, or with the histogram's brush, in the zone of the reader.
import { useEffect, useState } from "preact/hooks";
import { nanoseconds, type Log } from "../api/client";
import { fromLocal, toLocal, zone } from "../format";
import { changed, type Place } from "../router";

const SECOND = 1_000_000_000n;
/** What a time looks like that is typed. */
const PATTERN = String.raw`\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,3})?)?`;
const EXAMPLE = "2026-01-31 13:05:00";

/** A time of the URL: seconds since 1970, perhaps with a fraction, or RFC 3339. */
export function moment(text: string): bigint | null {
  if (/^\d+(\.\d{1,9})?$/.test(text)) {
    const [whole, fraction] = text.split(".");
    return BigInt(whole ?? 0) * SECOND + BigInt((fraction ?? "").padEnd(9, "0"));
  }
  return /^\d{4}-.*Z$/.test(text) ? nanoseconds(text) : null;
}

function seconds(ns: bigint): string {
  const fraction = String(ns % SECOND).padStart(9, "0").replace(/0+$/, "");
  return `${ns / SECOND}${fraction === "" ? "" : `.${fraction}`}`;
}

/** Shortest time that is brushed in whole seconds, as the inputs show it. */
const WHOLE_FROM_S = 2;

/** A time that was brushed, as it stands in the URL: all of the seconds that it touches. */
export function brushed(from: number, to: number): { from: string; to: string } {
  if (to - from < WHOLE_FROM_S) return { from: from.toFixed(3), to: to.toFixed(3) };
  return { from: String(Math.floor(from)), to: String(Math.ceil(to)) };
}

/** What was typed; null where it is as it was. */
export interface Typed {
  from: string | null;
  to: string | null;
}

/** Times as they are typed, and what they change in the URL; null if one of them is no time. */
export function useTyped(of: { log: string; from: string; to: string }) {
  const [typed, setTyped] = useState<Typed>(UNTYPED);
  useEffect(() => setTyped(UNTYPED), [of.log, of.from, of.to]);
  const changes = (): Record<string, string | null> | null => {
    const all: Record<string, string | null> = {};
    for (const name of ["from", "to"] as const) {
      const text = typed[name]?.trim();
      if (text === undefined) continue;
      const ns = fromLocal(text);
      if (text !== "" && ns === null) return null;
      all[name] = ns === null ? null : seconds(ns);
    }
    return all;
  };
  return { typed, type: (change: Partial<Typed>) => setTyped({ ...typed, ...change }), changes };
}

const UNTYPED: Typed = { from: null, to: null };

interface TimesProps {
  place: Place;
  what: { log: string; from: string; to: string };
  /** The log, once it is known. */
  log: Log | null;
  typed: Typed;
  type: (change: Partial<Typed>) => void;
}

/** Without a choice, all of the log: of one that is being recorded, also what comes until it is searched. */
export function Times({ place, what, log, typed, type }: TimesProps) {
  const recording = log?.state === "recording";
  const first = log?.first ? nanoseconds(log.first) : null;
  const last = log?.last ? nanoseconds(log.last) + SECOND : null;
  const now = BigInt(Date.now()) * 1_000_000n;
  const text = (typed: string | null, chosen: string, whole: bigint | null) => {
    const ns = chosen === "" ? whole : moment(chosen);
    return typed ?? (ns === null ? "" : toLocal(ns));
  };
  const recent = (seconds: number) => {
    const end = recording ? now : (last ?? 0n);
    return changed(place, { from: String(end / SECOND - BigInt(seconds)), to: null });
  };
  const input = (name: "from" | "to", value: string, empty: string) => (
    <label class="labelled">
      <span>
        {name === "from" ? "From" : "To"} ({zone(moment(what[name]) ?? first ?? now)})
      </span>
      <input
        class="time"
        pattern={PATTERN}
        title={`A time as ${EXAMPLE}; empty for ${name === "from" ? "the log's beginning" : "its end"}`}
        placeholder={empty}
        spellcheck={false}
        autocomplete="off"
        aria-invalid={value !== "" && fromLocal(value.trim()) === null}
        value={value}
        onInput={(event) => type({ [name]: event.currentTarget.value })}
      />
    </label>
  );
  return (
    <div class="times">
      {input("from", text(typed.from, what.from, first), "the beginning")}
      {input("to", text(typed.to, what.to, recording ? null : last), recording ? "now" : "the end")}
      <span class="chips">
        <a class="chip" href={recent(900)}>
          last 15 min
        </a>
        <a class="chip" href={recent(3600)}>
          hour
        </a>
        <a class="chip" href={recent(86_400)}>
          day
        </a>
        <a class="chip" href={changed(place, { from: null, to: null })}>
          all
        </a>
      </span>
    </div>
  );
}
