// Series of the API as lines of a chart.
import type { Event, RecorderTick, Series } from "../api/client";
import { nanoseconds } from "../api/client";
import { colour, compare, kept } from "./colour";
import type { Line, Mark } from "./chart";

export type Amount = "packets" | "captured_bytes" | "kept_bytes";

export interface Points {
  t: number[];
  of: { class: string; granularity: string; packets: Values; captured_bytes: Values; kept_bytes: Values }[];
}

type Values = (number | null)[];

export function fromSeries(series: Series): Points {
  return { t: series.t, of: series.series };
}

/** Ticks as series: of each class and granularity that any of them has. */
export function fromTicks(past: { at: number; tick: RecorderTick }[]): Points {
  const t = past.map(({ at }) => at);
  const all = new Map<string, Points["of"][number]>();
  past.forEach(({ tick }, at) => {
    if (!tick.up) return;
    for (const rate of tick.classes) {
      const key = `${rate.class}\n${rate.granularity}`;
      let one = all.get(key);
      if (!one) {
        const zeros = () => past.map(({ tick }) => (tick.up ? 0 : null)) as Values;
        one = {
          class: rate.class,
          granularity: rate.granularity,
          packets: zeros(),
          captured_bytes: zeros(),
          kept_bytes: zeros(),
        };
        all.set(key, one);
      }
      one.packets[at] = rate.packets_per_second;
      one.captured_bytes[at] = rate.captured_bytes_per_second;
      one.kept_bytes[at] = rate.kept_bytes_per_second;
    }
  });
  return { t, of: [...all.values()] };
}

/** The recent past as the server knows it, then what came since the page is open. */
export function joined(before: Points | null, live: Points, seconds: number): Points {
  const start = live.t[0] ?? Infinity;
  const end = live.t.at(-1) ?? before?.t.at(-1) ?? 0;
  const oldest = end - seconds;
  const keep = before?.t.flatMap((t, at) => (t < start && t >= oldest ? [at] : [])) ?? [];
  const after = live.t.flatMap((t, at) => (t >= oldest ? [at] : []));
  const names = new Map<string, [Points["of"][number] | undefined, Points["of"][number] | undefined]>();
  for (const one of before?.of ?? []) names.set(`${one.class}\n${one.granularity}`, [one, undefined]);
  for (const one of live.of) {
    const key = `${one.class}\n${one.granularity}`;
    names.set(key, [names.get(key)?.[0], one]);
  }
  const pick = (old: Values | undefined, fresh: Values | undefined): Values => [
    ...keep.map((at) => old?.[at] ?? null),
    ...after.map((at) => fresh?.[at] ?? null),
  ];
  return {
    t: [...keep.map((at) => before?.t[at] ?? 0), ...after.map((at) => live.t[at] ?? 0)],
    of: [...names.values()].flatMap(([old, fresh]) => {
      const one = fresh ?? old;
      if (!one) return [];
      return [
        {
          class: one.class,
          granularity: one.granularity,
          packets: pick(old?.packets, fresh?.packets),
          captured_bytes: pick(old?.captured_bytes, fresh?.captured_bytes),
          kept_bytes: pick(old?.kept_bytes, fresh?.kept_bytes),
        },
      ];
    }),
  };
}

export function lines(points: Points, amount: Amount, dark: boolean): Line[] {
  return [...points.of].sort(compare).map((one) => ({
    name: `${one.class}, ${kept(one.granularity)}`,
    colour: colour(one.class, one.granularity, dark),
    values: one[amount],
  }));
}

/** All classes together. */
export function total(points: Points, amount: Amount): Values {
  return points.t.map((_, at) => {
    let sum: number | null = null;
    for (const one of points.of) {
      const value = one[amount][at];
      if (value !== null && value !== undefined) sum = (sum ?? 0) + value;
    }
    return sum;
  });
}

export function marks(events: Event[]): Mark[] {
  return events.map((event) => ({ at: Number(nanoseconds(event.at)) / 1e9, text: event.what }));
}
