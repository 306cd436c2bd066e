// Amounts and times as an operator reads them.

const DECIMAL = ["", "k", "M", "G", "T", "P"];

/** Three digits that count: 1.23, 12.3, 123. */
function digits(value: number): string {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  return value.toFixed(size >= 10 ? 1 : 2);
}

function scaled(value: number, unit: string, steps: readonly string[] = DECIMAL): string {
  let step = 0;
  while (Math.abs(value) >= 999.5 && step < steps.length - 1) {
    value /= 1000;
    step += 1;
  }
  const prefix = steps[step] ?? "";
  return prefix + unit === "" ? digits(value) : `${digits(value)} ${prefix}${unit}`;
}

export function bytes(value: number): string {
  return scaled(value, "B", ["", "k", "M", "G", "T", "P"]);
}

export function byteRate(value: number): string {
  return scaled(value, "B/s");
}

/** What an axis of bits shows. */
export function bitRate(bytesPerSecond: number): string {
  return scaled(bytesPerSecond * 8, "b/s");
}

export function count(value: number): string {
  return Number.isInteger(value) && Math.abs(value) < 100_000
    ? grouped(value)
    : scaled(value, "").replace(" ", "\u202f");
}

/** Every digit, in groups of three. */
export function grouped(value: number): string {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ",");
}

export function rate(perSecond: number): string {
  return `${count(perSecond < 10 ? Math.round(perSecond * 10) / 10 : Math.round(perSecond))}/s`;
}

export function percent(share: number): string {
  const value = share * 100;
  if (value > 0 && value < 0.01) return "< 0.01 %";
  if (value < 100 && value > 99.99) return "99.99 %";
  return `${value >= 10 ? value.toFixed(value === 100 ? 0 : 1) : value.toFixed(2)} %`;
}

export function duration(seconds: number): string {
  if (seconds < 1e-3) return `${digits(seconds * 1e6)} µs`;
  if (seconds < 1) return `${digits(seconds * 1e3)} ms`;
  if (seconds < 60) return `${digits(seconds)} s`;
  const whole = Math.round(seconds);
  const parts: [number, string][] = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor((whole % 86400) / 3600), "h"],
    [Math.floor((whole % 3600) / 60), "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  return parts
    .slice(first, first + 2)
    .filter(([amount]) => amount > 0)
    .map(([amount, unit]) => `${amount} ${unit}`)
    .join(" ");
}

const two = (value: number) => String(value).padStart(2, "0");

/** Nanoseconds since 1970 as local time; `digits` of the second's fraction. */
export function time(ns: bigint, fraction = 3): string {
  const date = new Date(Number(ns / 1_000_000n));
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (fraction === 0) return clock;
  const part = String(((ns % 1_000_000_000n) + 1_000_000_000n) % 1_000_000_000n).padStart(9, "0");
  return `${clock}.${part.slice(0, fraction)}`;
}

export function day(ns: bigint): string {
  const date = new Date(Number(ns / 1_000_000n));
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

export function dayTime(ns: bigint, fraction = 0): string {
  return `${day(ns)} ${time(ns, fraction)}`;
}

/** Local civil time, `2026-01-31 13:05` or with seconds, as nanoseconds; null if the text is not a time. */
export function fromLocal(text: string): bigint | null {
  if (!/^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,3})?)?$/.test(text)) return null;
  const at = new Date(text.replace(" ", "T")).getTime();
  return Number.isNaN(at) ? null : BigInt(at) * 1_000_000n;
}

/** What an input of a time shows: of a second's fraction what there is of it, in milliseconds. */
export function toLocal(ns: bigint): string {
  return dayTime(ns, (ns / 1_000_000n) % 1000n === 0n ? 0 : 3);
}

/** The offset from UTC at a time, `UTC+02:00`. */
export function zone(ns: bigint): string {
  const minutes = -new Date(Number(ns / 1_000_000n)).getTimezoneOffset();
  if (minutes === 0) return "UTC";
  const size = Math.abs(minutes);
  return `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

export function plural(amount: number, one: string, many = `${one}s`): string {
  return `${count(amount)} ${amount === 1 ? one : many}`;
}

const WITH_PORTS: Record<string, string> = { "6": "tcp", "17": "udp", "132": "sctp" };

/** A filter for the packets of a flow, from its id; empty if it is not an id of a flow. */
export function filterOf(id: string): string {
  const [protocol, low, lowPort, high, highPort] = id.split("_");
  if (protocol === undefined || low === undefined || high === undefined || highPort === undefined) return "";
  if (protocol === "e") return `ether host ${low} and ether host ${high}`;
  const name = WITH_PORTS[protocol];
  if (name) return `${name} and host ${low} and host ${high} and port ${lowPort} and port ${highPort}`;
  return `${low.includes(":") ? "ip6" : "ip"} proto ${protocol} and host ${low} and host ${high}`;
}
