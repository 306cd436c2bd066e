// Answers that come in pieces. Until the server says that one is at its end, what is here is a part
// of it, and no sum of it is the sum: a `Part` keeps the two apart. Its value is reached only
// together with the words that say so.
import type { ComponentChildren, VNode } from "preact";
import { address, brokenOff, call, type Covered, type Flow, lines, Refused, type Schemas, type SearchEvent, type SearchResult, type Series } from "./client";

/** While more of it is to come. */
const SO_FAR = "so far";
/** Where the answer has ended, but not everything was read: `covered` says why. */
const OF_WHAT_WAS_READ = "in the part that was read";

/** Some of an answer: what it says is true of what was looked at, and of no more. */
export class Part<T> {
  readonly #value: T;
  readonly #words: string;

  constructor(value: T, words = SO_FAR) {
    this.#value = value;
    this.#words = words;
  }

  /** A sentence's piece about it, with the words behind it: `35 packets so far`. */
  said(say: (value: T) => string): string {
    return `${say(this.#value)} ${this.#words}`;
  }

  /** What is drawn of it, below the words. */
  shown(show: (value: T) => ComponentChildren): VNode {
    const words = this.#words.charAt(0).toUpperCase() + this.#words.slice(1);
    return (
      <div class="so-far">
        <p class="so-far-words">{words}</p>
        {show(this.#value)}
      </div>
    );
  }

  /** Something of it, which is a part as well. */
  map<U>(of: (value: T) => U): Part<U> {
    return new Part(of(this.#value), this.#words);
  }

  /** The same of something that may be missing. */
  pick<U>(of: (value: T) => U | null | undefined): Part<U> | null {
    const found = of(this.#value);
    return found == null ? null : new Part(found, this.#words);
  }
}

/** All of it, or a part that says that it is one. */
export type Known<T> = T | Part<T>;

export function said<T>(known: Known<T>, say: (value: T) => string): string {
  return known instanceof Part ? known.said(say) : say(known);
}

export function shown<T>(known: Known<T>, show: (value: T) => ComponentChildren): ComponentChildren {
  return known instanceof Part ? known.shown(show) : show(known);
}

export function mapped<T, U>(known: Known<T>, of: (value: T) => U): Known<U> {
  return known instanceof Part ? known.map(of) : of(known);
}

interface Piece {
  event: string;
  problem?: Schemas["Error"] | null;
}

/** The last event of an answer, `done`. One that fails, or ends without it, is an error. */
async function toEnd<E extends Piece>(url: string, signal: AbortSignal, news: (event: E) => void): Promise<E> {
  for await (const event of lines<E>(url, signal)) {
    if (event.event === "done") return event;
    if (event.event === "error") throw new Refused(0, event.problem ?? brokenOff().problem);
    news(event);
  }
  throw brokenOff();
}

type Query = Parameters<typeof address<"search">>[1];
type Asked = NonNullable<NonNullable<Query>["query"]>;

/** The sums of everything in the time, counted before its packets are read. */
export type Outline = NonNullable<SearchEvent["outline"]>;

/** What a search has found while it goes on. */
export interface SoFar {
  flows: number;
  packets: number;
  /** The first of them, with what was counted of each. */
  rows: Flow[];
  /** Not where there is an outline. */
  histogram: Series | null;
}

/** News of a search: each has what changed. */
export interface SearchNews {
  outline?: Outline;
  share?: number;
  found?: Part<SoFar>;
}

/** A search at its end. */
export interface Searched {
  /** To page through its flows. */
  search: string;
  /** For what is no sum: the commands, and what was looked at. */
  about: Pick<SearchResult, "command" | "covered" | "listed">;
  isEmpty: boolean;
  result: Known<SearchResult>;
}

/** Searches a log; `news` hears what was found so far. */
export async function search(
  log: string,
  query: Asked,
  signal: AbortSignal,
  news: (news: SearchNews) => void = () => undefined,
): Promise<Searched> {
  let rows: Flow[] = [];
  const url = address("search", { path: { log }, query });
  const end = await toEnd<SearchEvent>(url, signal, (event) => {
    if (event.event === "outline" && event.outline) news({ outline: event.outline });
    if (event.event !== "progress") return;
    // The first flows are sent as there are more of them, not each time.
    if (event.rows && event.rows.length > 0) rows = event.rows;
    const { share = 0, flows = 0, packets = 0, histogram = null } = event;
    news({ share, found: new Part({ flows, packets, rows, histogram }) });
  });
  const { result } = end;
  if (!result) throw brokenOff();
  return { search: end.search ?? "", about: result, isEmpty: result.packets === 0, result: covered(result) };
}

/** An answer that ended early, or for which not everything could be read, is a part of what there is. */
export function covered<T extends { covered: Covered }>(result: T): Known<T> {
  return result.covered.complete ? result : new Part(result, OF_WHAT_WAS_READ);
}

/** Flows asked for at a time, and most that are looked through. */
const PAGE = 1000;
const LOOKED_THROUGH_MOST = 20_000;

/** What a flow is: the same however many of its packets were read. */
export type Identity = Pick<
  Flow,
  | "id"
  | "src"
  | "dst"
  | "src_owner"
  | "dst_owner"
  | "src_port"
  | "dst_port"
  | "protocol"
  | "name"
  | "community_id"
  | "filter"
>;

/** A flow that was counted. */
export interface FlowFound {
  flow: Identity;
  sums: Known<Flow>;
  /** The class of most of its packets that were read. */
  mostly: string;
}

/** A flow, once a search has counted it; null if the search finds none such. */
export async function flowOf(
  log: string,
  query: Asked,
  is: (flow: Flow) => boolean,
  signal: AbortSignal,
  news: (share: number, flow: Part<Flow> | null) => void,
): Promise<FlowFound | null> {
  const found = await search(log, { ...query, points: 10 }, signal, ({ share = 0, found }) => {
    news(share, found?.pick(({ rows }) => rows.find(is)) ?? null);
  });
  for (let offset = 0; offset < LOOKED_THROUGH_MOST; offset += PAGE) {
    const asked = { path: { search: found.search }, query: { offset, limit: PAGE }, signal };
    const { rows, total } = await call("flows", asked);
    const flow = rows.find(is);
    if (flow) return { flow, sums: mapped(found.result, () => flow), mostly: flow.class };
    if (offset + rows.length >= total) break;
  }
  return null;
}

type Verified = Schemas["VerifyEvent"];

/** Reads every byte of a log; `news` hears the share that was read. */
export async function verify(log: string, signal: AbortSignal, news: (share: number) => void): Promise<Verified> {
  const url = address("verify", { path: { log } });
  return toEnd<Verified>(url, signal, ({ share }) => news(share ?? 0));
}
