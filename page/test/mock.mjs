// A server that answers with the examples of the OpenAPI document: for work on the page alone, and
// for what a real log does not hold. `node test/mock.mjs` listens on 127.0.0.1:9471.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { parse } from "yaml";

const here = new URL("../", import.meta.url);
const contract = parse(readFileSync(new URL("../crates/run/serve/openapi.yaml", here), "utf8"));

/** What `strata serve` allows its page. */
export const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

function example(schema) {
  if (schema.$ref) return example(contract.components.schemas[schema.$ref.split("/").pop()]);
  if (schema.example !== undefined) return structuredClone(schema.example);
  if (schema.nullable) return null;
  if (schema.type === "array") return [example(schema.items)];
  if (schema.type === "object" || schema.properties) {
    const entries = Object.entries(schema.properties ?? {});
    return Object.fromEntries(entries.map(([name, inner]) => [name, example(inner)]));
  }
  if (schema.enum) return schema.enum[0];
  return { string: "", integer: 0, number: 0, boolean: false }[schema.type] ?? null;
}

export function ofSchema(name) {
  return example(contract.components.schemas[name]);
}

const ROUTES = Object.entries(contract.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({
    method: method.toUpperCase(),
    pattern: new RegExp(`^${path.replace(/\{\w+\}/g, "[^/]+")}$`),
    operation,
  })),
);

const KINDS = { html: "text/html; charset=utf-8", js: "text/javascript", css: "text/css", svg: "image/svg+xml" };

function page(url, response) {
  const name = /^\/[\w.-]+\.(js|css|svg)$/.test(url.pathname) ? url.pathname.slice(1) : "index.html";
  try {
    const bytes = readFileSync(new URL(`dist/${name}`, here));
    response.writeHead(200, { "Content-Type": KINDS[name.split(".").pop()], "Content-Security-Policy": CSP });
    response.end(bytes);
  } catch {
    response.writeHead(404).end();
  }
}

function live(response, ticks, every) {
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  let turn = 0;
  const send = () => response.write(`event: tick\ndata: ${JSON.stringify(ticks(turn++))}\n\n`);
  send();
  const timer = setInterval(send, every);
  response.on("close", () => clearInterval(timer));
}

/** A tick of the example that moves. */
export function moving(turn) {
  const tick = ofSchema("Tick");
  const wave = 1 + 0.3 * Math.sin(turn / 7);
  tick.at = Date.now() / 1000;
  for (const recorder of tick.recorders) {
    for (const name of ["packets_per_second", "bytes_per_second", "kept_bytes_per_second"]) recorder[name] *= wave;
    for (const one of recorder.classes) {
      for (const [name, value] of Object.entries(one)) if (typeof value === "number") one[name] = value * wave;
    }
    if (turn > 0) recorder.events = [];
  }
  return tick;
}

/** Ends a stream where it stands: the connection breaks. */
export const BREAK = Symbol("break");
/** Keeps a stream open without an end. */
export const HANG = Symbol("hang");

/** Events in pieces, one after the other, or promises of them; a text is sent as it is. */
async function stream(response, events) {
  response.writeHead(200, { "Content-Type": "application/x-ndjson" });
  for await (const event of events) {
    if (event === HANG) return;
    if (event === BREAK) return response.destroy();
    const text = typeof event === "string" ? event : `${JSON.stringify(event)}\n`;
    await new Promise((sent) => response.write(text, sent));
  }
  response.end();
}

/**
 * Starts it. `over` answers instead of the examples where it has an operation's id: a value, or a
 * function of the URL. `every` is milliseconds between ticks.
 */
export async function mock({ over = {}, ticks = moving, every = 1000, port = 0 } = {}) {
  const server = createServer(async (request, response) => {
    const url = new URL(request.url, "http://localhost");
    if (!url.pathname.startsWith("/api/")) return page(url, response);
    const route = ROUTES.find(({ method, pattern }) => method === request.method && pattern.test(url.pathname));
    if (!route) return response.writeHead(404).end('{"error":"no such thing","code":"not_found"}');
    const { operationId, responses } = route.operation;
    const own = over[operationId];
    const value = await (typeof own === "function" ? own(url, request) : own);
    if (value?.status) {
      response.writeHead(value.status, { "Content-Type": "application/json" });
      return response.end(JSON.stringify(value.body));
    }
    if (operationId === "live") return live(response, ticks, every);
    if (operationId === "search") return void stream(response, value ?? found());
    if (operationId === "verify") return void stream(response, value ?? [{ event: "done", files: 3, bytes: 70000, damaged: [] }]);
    const [status, said] = Object.entries(responses).find(([code]) => code.startsWith("2"));
    const schema = said.content?.["application/json"]?.schema;
    response.writeHead(Number(status), { "Content-Type": "application/json" });
    response.end(schema ? JSON.stringify(value ?? example(schema)) : "");
  });
  await new Promise((done) => server.listen(port, "127.0.0.1", done));
  const address = `http://127.0.0.1:${server.address().port}`;
  return {
    address,
    /** Breaks all connections, as a session's end does. */
    drop() {
      server.closeAllConnections();
    },
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
}

function found() {
  return [
    { event: "begin", search: "1" },
    { event: "progress", share: 0.5, flows: 1, rows: [ofSchema("Flow")] },
    { event: "done", search: "1", result: ofSchema("SearchResult") },
  ];
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  console.log((await mock({ port: 9471 })).address);
}
