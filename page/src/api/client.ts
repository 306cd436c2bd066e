// Requests to the server, typed by its OpenAPI document.
import type { components, operations, paths } from "./schema";

export type Schemas = components["schemas"];
export type Session = Schemas["Session"];
export type Tick = Schemas["Tick"];
export type RecorderTick = Schemas["RecorderTick"];
export type Recorder = Schemas["Recorder"];
export type Event = Schemas["Event"];
export type Series = Schemas["Series"];
export type Covered = Schemas["Covered"];
export type Log = Schemas["Log"];
export type Flow = Schemas["Flow"];
export type Owner = Schemas["Owner"];
export type Packet = Schemas["Packet"];
export type PacketDetail = Schemas["PacketDetail"];
export type Why = Schemas["Why"];
export type WhySign = Schemas["WhySign"];
export type WhyTree = Schemas["WhyTree"];
export type Field = Schemas["Field"];
export type Policy = Schemas["Policy"];
export type Changed = Schemas["Changed"];
export type SearchEvent = Schemas["SearchEvent"];
export type SearchResult = Schemas["SearchResult"];
export type Answer = Schemas["Answer"];
export type KeptQuestion = Schemas["KeptQuestion"];

export const ROOT = "/api/v1";

/** An answer of the server that it refuses a request, and why. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly problem: Schemas["Error"],
  ) {
    super(problem.error);
  }

  get code(): string {
    return this.problem.code;
  }
}

/** A stream that ended before the server said that it is at its end. */
export function brokenOff(): Refused {
  return new Refused(0, {
    error: "the answer was cut off: its end is missing",
    code: "internal",
  });
}

type Id = keyof operations;
type Of<I extends Id, Place extends "path" | "query"> = operations[I] extends {
  parameters: { [K in Place]?: infer Values };
}
  ? Values
  : never;
type Body<I extends Id> = operations[I] extends {
  requestBody?: { content: { "application/json": infer Content } };
}
  ? Content
  : never;
type Content<Response> = Response extends { content: { "application/json": infer Value } }
  ? Value
  : undefined;
type Result<I extends Id> = operations[I] extends { responses: infer All }
  ? Content<All[keyof All & (200 | 201 | 204)]>
  : never;

interface Request<I extends Id> {
  path?: Of<I, "path">;
  query?: Of<I, "query">;
  body?: Body<I>;
  signal?: AbortSignal;
}

/** Where each operation is; the compiler compares the paths with the document. */
const PLACES = {
  session: ["GET", "/api/v1/session"],
  login: ["POST", "/api/v1/session"],
  logout: ["DELETE", "/api/v1/session"],
  audit: ["GET", "/api/v1/audit"],
  live: ["GET", "/api/v1/live"],
  recorders: ["GET", "/api/v1/recorders"],
  history: ["GET", "/api/v1/recorders/{recorder}/history"],
  events: ["GET", "/api/v1/recorders/{recorder}/events"],
  acknowledge: ["POST", "/api/v1/recorders/{recorder}/events/{event}/acknowledge"],
  setMode: ["PUT", "/api/v1/recorders/{recorder}/mode"],
  setDetail: ["PUT", "/api/v1/recorders/{recorder}/detail"],
  rotate: ["POST", "/api/v1/recorders/{recorder}/rotate"],
  policies: ["GET", "/api/v1/recorders/{recorder}/policies"],
  addPolicy: ["POST", "/api/v1/recorders/{recorder}/policies"],
  removePolicy: ["DELETE", "/api/v1/recorders/{recorder}/policies/{policy}"],
  checkPolicy: ["POST", "/api/v1/policies/check"],
  checkFilter: ["GET", "/api/v1/filter/check"],
  completeFilter: ["GET", "/api/v1/filter/complete"],
  logs: ["GET", "/api/v1/logs"],
  series: ["GET", "/api/v1/logs/{log}/series"],
  search: ["GET", "/api/v1/logs/{log}/search"],
  flows: ["GET", "/api/v1/searches/{search}/flows"],
  flowPackets: ["GET", "/api/v1/logs/{log}/flows/{flow}/packets"],
  packet: ["GET", "/api/v1/logs/{log}/packets/{packet}"],
  export: ["GET", "/api/v1/logs/{log}/export"],
  reasons: ["GET", "/api/v1/logs/{log}/reasons"],
  storage: ["GET", "/api/v1/logs/{log}/storage"],
  models: ["GET", "/api/v1/logs/{log}/models"],
  verify: ["GET", "/api/v1/logs/{log}/verify"],
  label: ["POST", "/api/v1/logs/{log}/labels"],
  questions: ["GET", "/api/v1/questions"],
  keepQuestion: ["POST", "/api/v1/questions"],
  forgetQuestion: ["DELETE", "/api/v1/questions/{name}"],
  fleet: ["GET", "/api/v1/fleet"],
  askable: ["GET", "/api/v1/ask"],
  ask: ["POST", "/api/v1/ask"],
} as const satisfies Record<Id, readonly ["GET" | "PUT" | "POST" | "DELETE", keyof paths]>;

export function address<I extends Id>(id: I, request: Request<I> = {}): string {
  let path: string = PLACES[id][1];
  for (const [name, value] of Object.entries((request.path ?? {}) as Record<string, unknown>)) {
    path = path.replace(`{${name}}`, encodeURIComponent(String(value)));
  }
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries((request.query ?? {}) as Record<string, unknown>)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return text === "" ? path : `${path}?${text}`;
}

/** Runs where a login is needed, again or at first. */
let loginNeeded: () => void = () => undefined;

export function onLogin(act: () => void): void {
  loginNeeded = act;
}

/** Sends a request; what goes wrong is a `Refused` with words for the user. */
export async function send(
  method: string,
  url: string,
  body?: unknown,
  signal?: AbortSignal,
): Promise<Response> {
  const headers: Record<string, string> = {};
  if (method !== "GET") headers["X-Strata"] = "1";
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(url, {
      method,
      headers,
      credentials: "same-origin",
      redirect: "error",
      body: body === undefined ? null : JSON.stringify(body),
      signal: signal ?? null,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, {
      error: "strata serve does not answer: is it still running?",
      code: "internal",
    });
  }
  if (response.ok) return response;
  const refused = new Refused(response.status, await problem(response));
  const isLogin = method === PLACES.login[0] && url === PLACES.login[1];
  if (refused.code === "login" && !isLogin) loginNeeded();
  throw refused;
}

async function problem(response: Response): Promise<Schemas["Error"]> {
  try {
    const said = (await response.json()) as Schemas["Error"];
    if (typeof said.error === "string") return said;
  } catch {
    // Not of the API: said below.
  }
  return { error: `the server answered ${response.status}`, code: "internal" };
}

export async function call<I extends Id>(id: I, request: Request<I> = {}): Promise<Result<I>> {
  const response = await send(PLACES[id][0], address(id, request), request.body, request.signal);
  if (response.status === 204) return undefined as Result<I>;
  return (await response.json()) as Result<I>;
}

/** Longest line of a stream, in characters: more is not what this server sends. */
const LINE_LONGEST = 16 << 20;

/** Reads newline-delimited JSON as it comes; ends with the signal. For `stream.ts`, which tells parts from the whole. */
export async function* lines<T>(url: string, signal: AbortSignal): AsyncGenerator<T> {
  const response = await send("GET", url, undefined, signal);
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error: unknown) => {
      throw signal.aborted ? error : brokenOff();
    });
    rest += value ?? "";
    let end = rest.indexOf("\n");
    while (end >= 0) {
      const line = rest.slice(0, end);
      rest = rest.slice(end + 1);
      if (line !== "") yield JSON.parse(line) as T;
      end = rest.indexOf("\n");
    }
    if (rest.length > LINE_LONGEST) throw new Error("the server sent a line that is too long");
    if (done) break;
  }
  // Each line ends with its line feed: what is left was cut off.
  if (rest !== "") throw brokenOff();
}

/** Nanoseconds since 1970 of a time of the API, `2026-01-31T13:00:00.123456789Z`. */
export function nanoseconds(at: string): bigint {
  const [, seconds, fraction] = /^(.*?)(?:\.(\d+))?Z$/.exec(at) ?? [];
  if (seconds === undefined) return 0n;
  const whole = BigInt(Math.round(Date.parse(`${seconds}Z`) / 1000));
  return whole * 1_000_000_000n + BigInt((fraction ?? "").padEnd(9, "0").slice(0, 9));
}

/** The other way, exactly. */
export function rfc3339(ns: bigint): string {
  const whole = ns / 1_000_000_000n;
  const text = new Date(Number(whole) * 1000).toISOString().slice(0, 19);
  return `${text}.${String(ns % 1_000_000_000n).padStart(9, "0")}Z`;
}
