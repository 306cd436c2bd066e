// The real program: recordings, and `strata serve` over them.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

export const root = new URL("../../", import.meta.url).pathname;
export const STRATA = process.env.STRATA_PROGRAM ?? join(root, "target/debug/strata");
const SQL = "strata-sql";

/** The program of SQL: beside the program, of a release build (`make sql`), or in the path. */
export function sql() {
  const path = (process.env.PATH ?? "").split(":");
  const folders = [dirname(STRATA), join(root, "target/release"), ...path];
  return folders.map((folder) => join(folder, SQL)).find((file) => existsSync(file)) ?? null;
}

/** As seen from the root of the project, where programs run. */
export const CAPTURE = "demo/mix.pcap";

export function run(...args) {
  return execFileSync(STRATA, args, { cwd: root, stdio: ["ignore", "pipe", "pipe"], maxBuffer: 256 << 20 });
}

/** A directory that goes with the test. */
export function directory(test) {
  const made = mkdtempSync(join(tmpdir(), "strata-page-"));
  test.after(() => rmSync(made, { recursive: true, force: true }));
  return made;
}

export function recorded(test, ...more) {
  const log = join(directory(test), "log");
  run("record", "-r", CAPTURE, "-o", log, ...more);
  return log;
}

/** Waits for what does not tell when it is there. */
export async function until(what, is, seconds = 30) {
  const end = Date.now() + seconds * 1000;
  while (Date.now() < end) {
    const value = await is();
    if (value) return value;
    await pause(50);
  }
  assert.fail(`${what}: not within ${seconds} s`);
}

/** A program that ends with the test; its standard error is kept. */
export function started(test, program, args, options = {}) {
  const child = spawn(program, args, { cwd: root, stdio: ["ignore", "ignore", "pipe"], ...options });
  child.said = "";
  child.stderr.setEncoding("utf8");
  child.stderr.on("data", (text) => (child.said = (child.said + text).slice(-64_000)));
  child.ended = new Promise((done) => child.on("exit", done));
  test.after(async () => {
    child.kill("SIGTERM");
    await child.ended;
  });
  return child;
}

/** Starts `strata serve` on a free port and says where. */
export async function serve(test, ...args) {
  return served(test, args);
}

/** The same from another directory, in which logs have short names. */
export async function served(test, args, { port = 0, ...options } = {}) {
  const child = started(test, STRATA, ["serve", "--listen", `127.0.0.1:${port}`, ...args], options);
  const address = await until("strata serve says where its page is", () => {
    assert.equal(child.exitCode, null, child.said);
    return /http:\/\/127\.0\.0\.1:\d+/.exec(child.said)?.[0];
  });
  return { address, child };
}

/** What a recording in a namespace needs. */
export function mayRecord() {
  if (process.getuid?.() !== 0) return "recording an interface needs root";
  try {
    execFileSync("unshare", ["--net", "true"], { stdio: "ignore" });
    return null;
  } catch {
    return "this machine gives no network namespace";
  }
}

/**
 * Records `lo` of a network namespace of its own, into which the demo's capture is replayed over and
 * over. Both end with the test.
 */
export async function recording(test, folder, name = "edge") {
  const log = join(folder, name);
  const socket = join(folder, `${name}.sock`);
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const script = [
    "ip link set lo up",
    `${quoted(STRATA)} replay -i lo -r ${quoted(CAPTURE)} --pps 400 --loop 0 >/dev/null 2>&1 & sender=$!`,
    `trap 'kill $sender $recorder; wait' TERM`,
    `${quoted(STRATA)} record -i lo -o ${quoted(log)} --socket ${quoted(socket)} >/dev/null & recorder=$!`,
    "wait $recorder; kill $sender; wait",
  ].join("\n");
  const child = started(test, "unshare", ["--net", "sh", "-c", script]);
  await until("the recording listens", () => {
    assert.equal(child.exitCode, null, child.said);
    return existsSync(socket);
  });
  return { log, socket, child };
}
