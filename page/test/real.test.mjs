// The page with the real server: real logs, a live recording, and what an operator does with them.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync, readdirSync, statSync, chmodSync } from "node:fs";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { accessible, clean, fits, launch, open } from "./browser.mjs";
import { CAPTURE, directory, mayRecord, recorded, recording, root, run, serve, served, sql, until } from "./strata.mjs";

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

async function download(page, name) {
  await page.getByText("Download", { exact: true }).click();
  const [file] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("link", { name, exact: true }).click(),
  ]);
  return readFileSync(await file.path());
}

test("a flow is found, its reason read, and a download is what strata export writes", async (t) => {
  const log = recorded(t);
  const { address } = await serve(t, log);
  const page = await open(browser, address);
  // Without a recorder, what logs hold comes first.
  await page.waitForURL(/\/search$/);
  const filter = "tcp port 443 and host 178.62.197.130";
  const input = page.getByRole("combobox", { name: "Filter" });
  await input.fill(filter);
  await input.press("Enter");
  await page.waitForURL(/filter=/);
  const state = page.locator(".search-state");
  await state.getByText(/\d+ flows?/).waitFor();
  const folder = directory(t);

  const pcapng = await download(page, "Packets, pcapng");
  run("export", log, "-w", join(folder, "all.pcapng"), filter);
  assert.deepEqual(pcapng, readFileSync(join(folder, "all.pcapng")));
  // The number of packets that the page says is the one that tcpdump's filter finds.
  const said = /([\d,]+) packets?/.exec(await state.textContent())?.[1].replaceAll(",", "");
  run("export", log, "-w", join(folder, "all.json"), filter);
  const flows = readFileSync(join(folder, "all.json"), "utf8").trim().split("\n").map((line) => JSON.parse(line));
  assert.equal(Number(said), flows.reduce((sum, flow) => sum + flow.packets + flow.reverse_packets, 0));
  assert.match(await state.textContent(), new RegExp(`^${flows.length} flow`));
  await page.keyboard.press("Escape");

  await page.getByRole("grid").focus();
  await page.getByRole("grid").press("Enter");
  await page.waitForURL(/\/flow/);
  await page.getByRole("row").nth(1).waitFor();
  await page.getByRole("grid").press("Enter");
  await page.waitForURL(/\/packet/);
  await page.getByRole("heading", { name: "Why it was kept" }).waitFor();
  assert.match(await page.locator(".why .lead").textContent(), /\w+ \w+/);
  await page.locator("pre.hex").waitFor();
  await accessible(page);
  clean(page);
  await page.context().close();
});

/** Packets of a pcap file, counted without Strata. */
function packetsOf(pcap) {
  const little = pcap.readUInt8(0) === 0xd4 || pcap.readUInt8(0) === 0x4d;
  let packets = 0;
  for (let at = 24; at < pcap.length; packets += 1) {
    at += 16 + (little ? pcap.readUInt32LE(at + 8) : pcap.readUInt32BE(at + 8));
  }
  return packets;
}

test("a sample is not shown as if it were all", async (t) => {
  const { address } = await serve(t, recorded(t, "--mode", "log-sampled"));
  const page = await open(browser, `${address}/search`);
  const number = async (locator) => Number(/([\d,]+) packets?/.exec(await locator.textContent())[1].replaceAll(",", ""));
  const missing = await number(page.getByText(/Sampled out by a mode/).first());
  const found = await number(page.locator(".search-state").getByText(/on the wire/));
  assert.ok(missing > 0);
  assert.equal(found + missing, packetsOf(readFileSync(new URL(`../../${CAPTURE}`, import.meta.url))));
  clean(page);
  await page.context().close();
});

test("an error in a filter is the filter language's own, at its place", async (t) => {
  const { address } = await serve(t, recorded(t));
  const page = await open(browser, `${address}/search`);
  const input = page.getByRole("combobox", { name: "Filter" });
  await input.fill("tcp prot 80");
  await page.locator("mark").waitFor();
  assert.equal((await page.locator("mark").textContent()).trim().startsWith("prot"), true);
  await input.fill("tcp po");
  await page.getByRole("option", { name: /^port\b/ }).first().waitFor();
  clean(page);
  await page.context().close();
});

test("a live recording moves; its mode is changed and a policy added, with effect", async (t) => {
  const not = mayRecord();
  if (not) return process.env.CI ? assert.fail(not) : t.skip(not);
  const folder = directory(t);
  const { log, socket } = await recording(t, folder);
  const { address } = await serve(t, log, "--socket", socket);
  const page = await open(browser, `${address}/now`);
  await page.getByText("live", { exact: true }).waitFor();
  const rate = page.locator(".big", { hasText: /packets$/ }).first().locator("strong");
  await until("packets arrive", async () => Number.parseFloat(await rate.textContent()) > 100);
  const first = await page.locator(".legend").textContent();
  await until("the rate moves", async () => (await page.locator(".legend").textContent()) !== first);

  await page.getByRole("button", { name: "Change mode" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Mode").selectOption("log-all");
  await dialog.getByLabel("Why").fill("trying the page");
  await accessible(page);
  await dialog.getByRole("button", { name: "Change", exact: true }).click();
  await dialog.getByText(/^Done:/).waitFor();
  await dialog.getByRole("button", { name: "Close" }).click();
  await page.locator(".mode").getByText(/log-all/).first().waitFor();
  // A busy machine may be short of something, which the mode in force answers.
  assert.equal(JSON.parse(run("status", "--socket", socket, "--json")).asked_mode, "log-all");
  await page.locator(".events").getByText("trying the page").first().waitFor();

  await page.getByRole("link", { name: "Policies" }).click();
  const match = page.getByRole("combobox", { name: "Packets that match" });
  await match.fill("tcp port 80 and hots 10.0.0.1");
  await page.locator("mark").waitFor();
  assert.equal(await page.getByRole("button", { name: "Add", exact: true }).isDisabled(), true);
  await match.fill("tcp port 443");
  await page.getByText(/would have matched/).waitFor();
  await page.getByLabel("Action").selectOption("drop");
  await page.getByLabel("Why").fill("trying the page");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await page.getByText(/^Done:/).waitFor();
  const policies = () => JSON.parse(run("policy", "list", "--socket", socket, "--json"));
  assert.ok(policies().some((policy) => policy.match === "tcp port 443" && policy.action === "drop"));
  await until("the policy has hits", () => policies().some((policy) => policy.packets > 0));
  await accessible(page);
  await page.getByRole("button", { name: "Undo" }).click();
  await until("the policy is gone", () => policies().length === 0);

  await page.getByRole("link", { name: "Storage" }).click();
  await page.getByText("trying the page").first().waitFor();
  clean(page);
  await page.context().close();
});

test("a recorder that goes and comes back is reported, without loading the page again", async (t) => {
  const not = mayRecord();
  if (not) return process.env.CI ? assert.fail(not) : t.skip(not);
  const folder = directory(t);
  const recorder = await recording(t, folder);
  const { address } = await serve(t, "--socket", recorder.socket);
  const page = await open(browser, `${address}/now`);
  await page.getByText("live", { exact: true }).waitFor();
  recorder.child.kill("SIGTERM");
  await recorder.child.ended;
  await page.getByText(/Does not answer/).waitFor();
  await recording(t, folder);
  await page.getByText(/Does not answer/).waitFor({ state: "detached" });
  const rate = page.locator(".big", { hasText: /packets$/ }).first().locator("strong");
  await until("packets arrive again", async () => Number.parseFloat(await rate.textContent()) > 100);
  clean(page);
  await page.context().close();
});

test("empty and damaged logs are reported as such, and the rest is shown", async (t) => {
  const empty = join(directory(t), "empty");
  run("record", "-r", CAPTURE, "-o", empty, "host 203.0.113.255");
  const damaged = recorded(t);
  const block = readdirSync(join(damaged, "blocks")).find((name) => name.endsWith(".strata"));
  const file = join(damaged, "blocks", block);
  const bytes = readFileSync(file);
  const middle = Math.floor(statSync(file).size / 2);
  bytes[middle] ^= 0xff;
  chmodSync(file, 0o600);
  writeFileSync(file, bytes);
  const { address } = await serve(t, empty, damaged);
  const page = await open(browser, `${address}/search?log=0`);
  await page.getByText("No flow matches.").waitFor();
  await page.goto(`${address}/why?log=0`);
  await page.getByText("No packet is in this log yet.").waitFor();
  await page.goto(`${address}/storage?log=1`);
  await page.getByRole("button", { name: "Verify" }).click();
  await page.getByText(/damaged place/).first().waitFor();
  await page.goto(`${address}/search?log=1`);
  await page.getByText(/damaged place/).first().waitFor();
  clean(page);
  await page.context().close();
});

test("an encrypted log is reported as such, and read with its key", async (t) => {
  const log = recorded(t);
  const key = join(directory(t), "analysts.key");
  const recipient = /age1[a-z0-9]+/.exec(run("key", "new", key))[0];
  run("compact", log, "--encrypt-to", recipient);
  const closed = await serve(t, log);
  const page = await open(browser, `${closed.address}/search`);
  await page.getByText(/encrypted: start strata serve with --key/).waitFor();
  const opened = await serve(t, log, "--key", key);
  await page.goto(`${opened.address}/search`);
  await page.getByRole("gridcell").first().waitFor();
  assert.equal(await page.getByText(/encrypted/).count(), 0);
  clean(page);
  await page.context().close();
});

/** What roles tell apart, and the answers to those who may: nothing listens on the socket (502). */
const ASKED = [
  ["look", "GET", "/api/v1/logs/0/search?filter=tcp", null, 200],
  ["payload", "GET", "/api/v1/logs/0/export?format=pcapng", null, 200],
  ["payload", "POST", "/api/v1/ask", { language: "marple", log: "0", text: "no query" }, 400],
  ["payload", "POST", "/api/v1/questions", { name: "q", language: "marple", text: "x" }, 204],
  ["change", "PUT", "/api/v1/recorders/0/mode", { mode: "log-all" }, 502],
  ["change", "PUT", "/api/v1/recorders/0/detail", { detail: "none" }, 502],
  ["change", "POST", "/api/v1/recorders/0/policies", { match: "tcp", action: "drop" }, 502],
  ["change", "DELETE", "/api/v1/recorders/0/policies/1", null, 502],
  ["change", "POST", "/api/v1/recorders/0/rotate", null, 502],
  ["change", "POST", "/api/v1/logs/0/labels", { flow: "6_10.0.0.1_1_10.0.0.2_2", label: "scan" }, 400],
];
const ROLES = ["look", "payload", "change"];

/** Asks everything from within the page, as the user that it belongs to. */
async function answers(page) {
  const asked = ASKED.map(([, method, path, body]) => ({ method, path, body }));
  return page.evaluate(async (asked) => {
    const all = [];
    for (const { method, path, body } of asked) {
      const headers = { "X-Strata": "1", "Content-Type": "application/json" };
      const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
      const text = await answer.text();
      all.push([answer.status, answer.status === 403 ? JSON.parse(text).code : null]);
    }
    return all;
  }, asked);
}

/** Those of a role; with --read-only, no one changes or keeps anything. */
function allowed(role, readOnly = false) {
  return ASKED.map(([needs, method, path, , may]) => {
    const writes = method !== "GET" && path !== "/api/v1/ask";
    if (readOnly && writes) return [403, "read_only"];
    return ROLES.indexOf(role) >= ROLES.indexOf(needs) ? [may, null] : [403, "role"];
  });
}

/** What the page does not offer to users who may not change anything. */
const CHANGES = /Change mode|^Add$|Remove|^Label$|Acknowledge|Keep (only|this)|Stop keeping/;

async function isOfferedNoChange(page, address) {
  for (const path of ["/now", "/policies", "/why"]) {
    await page.goto(`${address}${path}`);
    await page.locator("main h1").first().waitFor({ state: "attached" });
    for (const role of ["button", "link"]) assert.equal(await page.getByRole(role, { name: CHANGES }).count(), 0, path);
  }
}

/** A log, tokens, a directory to keep things in, and a socket on which nothing listens. */
function guarded(t) {
  const folder = directory(t);
  const tokens = join(folder, "tokens");
  const each = Object.fromEntries(ROLES.map((role) => [role, role.padEnd(32, "0")]));
  writeFileSync(tokens, ROLES.map((role) => `${role} ${each[role]}\n`).join(""), { mode: 0o600 });
  const log = recorded(t);
  const more = [log, "--socket", join(folder, "none.sock"), "--state", join(folder, "state")];
  return { tokens, each, more };
}

async function login(address, token) {
  const page = await open(browser, `${address}/search`);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  return page;
}

test("each role is refused what it may not, and a wrong token is no token", async (t) => {
  const { tokens, each, more } = guarded(t);
  const { address } = await serve(t, ...more, "--token-file", tokens);
  const wrong = await login(address, "w".repeat(32));
  await wrong.getByRole("alert").waitFor();
  await wrong.context().close();
  for (const role of ROLES) {
    const page = await login(address, each[role]);
    await page.getByRole("grid").waitFor();
    await page.getByText("Download", { exact: true }).click();
    const offered = await page.getByRole("link", { name: "Packets, pcapng" }).count();
    assert.equal(offered, role === "look" ? 0 : 1);
    // Not only is it not offered: it is refused.
    assert.deepEqual(await answers(page), allowed(role), role);
    if (role !== "change") await isOfferedNoChange(page, address);
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("Token").waitFor();
    clean(page);
    await page.context().close();
  }
});

test("a proxy's users have the role that was given to them, and no one comes past it", async (t) => {
  const proxy = ["--trust-proxy", "127.0.0.1/32", "--user-header", "X-Forwarded-User"];
  for (const role of ROLES) {
    const { more } = guarded(t);
    const { address } = await serve(t, ...more, ...proxy, "--proxy-role", role);
    const named = await open(browser, `${address}/search`, { extraHTTPHeaders: { "X-Forwarded-User": "analyst 7" } });
    await named.getByRole("grid").waitFor();
    assert.deepEqual(await answers(named), allowed(role), role);
    const audit = await named.evaluate(async () => (await fetch("/api/v1/audit")).text());
    assert.equal(audit.includes("analyst 7"), role !== "look");
    if (role === "look") await isOfferedNoChange(named, address);
    clean(named);
    await named.context().close();
    const stranger = await open(browser, `${address}/search`);
    assert.deepEqual(new Set((await answers(stranger)).map(([status]) => status)), new Set([401]));
    await stranger.context().close();
  }
});

test("a page that is read-only changes nothing for any user", async (t) => {
  const { tokens, each, more } = guarded(t);
  const { address } = await serve(t, ...more, "--read-only", "--token-file", tokens);
  for (const role of ROLES) {
    const page = await login(address, each[role]);
    await page.getByText("Read-only: no changes can be made here.").waitFor();
    assert.deepEqual(await answers(page), allowed(role, true), role);
    await isOfferedNoChange(page, address);
    clean(page);
    await page.context().close();
  }
});

test("the server goes and comes back, and the page goes on where it was", async (t) => {
  const not = mayRecord();
  if (not) return process.env.CI ? assert.fail(not) : t.skip(not);
  const folder = directory(t);
  const { log, socket } = await recording(t, folder);
  const tokens = join(folder, "tokens");
  const token = "0".repeat(32);
  writeFileSync(tokens, `${token}\n`, { mode: 0o600 });
  const args = [log, "--socket", socket];
  for (const more of [[], ["--token-file", tokens]]) {
    const first = await serve(t, ...args, ...more);
    const port = Number(new URL(first.address).port);
    const page = await open(browser, `${first.address}/now?recorder=0`);
    const logsIn = async () => {
      await page.getByLabel("Token").fill(token);
      await page.getByRole("button", { name: "Log in" }).click();
    };
    if (more.length > 0) await logsIn();
    await page.getByText("live", { exact: true }).waitFor();
    first.child.kill("SIGKILL");
    await first.child.ended;
    await page.getByText("reconnecting …").waitFor();
    await page.getByText("The values shown are old").waitFor();
    await served(t, [...args, ...more], { port });
    // Logins end with the server that gave them.
    if (more.length > 0) await logsIn();
    await page.getByText("live", { exact: true }).waitFor();
    const rate = page.locator(".big", { hasText: /packets$/ }).first().locator("strong");
    await until("packets arrive again", async () => Number.parseFloat(await rate.textContent()) > 100);
    assert.match(page.url(), /\/now\?recorder=0$/);
    clean(page);
    await page.context().close();
  }
});

test("what was compacted and moved is shown with its tier, and searched as before", async (t) => {
  const log = recorded(t);
  const filter = "tcp port 443";
  const folder = directory(t);
  const { address } = await serve(t, log);
  const page = await open(browser, `${address}/storage`);
  const hours = page.locator(".hours li").first();
  await hours.getByText("block files").waitFor();
  run("compact", log);
  await page.reload();
  await hours.getByText("compacted").waitFor();
  run("move", log, `file://${join(folder, "cold")}`);
  await page.reload();
  await hours.getByText("moved").waitFor();
  // Which classes there are, and for how long, as `strata info` has them.
  const held = await page.getByRole("region", { name: "Stored data by class" }).getByRole("rowheader").allTextContents();
  assert.ok(held.length > 0 && !held.includes("not yet compacted"), held.join());
  await page.getByRole("button", { name: "Verify" }).click();
  await page.getByText(/^Intact: /).waitFor();
  await page.goto(`${address}/search?filter=${encodeURIComponent(filter)}`);
  await page.locator(".search-state").getByText(/\d+ flows?/).waitFor();
  const pcapng = await download(page, "Packets, pcapng");
  run("export", log, "-w", join(folder, "all.pcapng"), filter);
  assert.deepEqual(pcapng, readFileSync(join(folder, "all.pcapng")));
  clean(page);
  await page.context().close();
});

test("Storage reports of each recording what strata info does", async (t) => {
  const log = recorded(t);
  run("record", "-r", CAPTURE, "-o", log, "--mode", "log-all", "tcp");
  const { address } = await serve(t, log);
  const page = await open(browser, `${address}/storage`);
  const rows = page.getByRole("region", { name: "Recordings" }).getByRole("row");
  await rows.nth(2).waitFor();
  const info = JSON.parse(run("info", log, "--json"));
  const shown = [];
  for (const row of (await rows.all()).slice(1)) {
    const cells = await row.locator("td, th").allTextContents();
    shown.push(cells.map((cell) => cell.replaceAll(",", "")));
  }
  const told = info.map(({ recording, mode, accounting }) => {
    const [captured] = accounting.seen.map((seen, at) => seen - accounting.filtered[at]);
    const lost = accounting.dropped.reduce((sum, [, [packets]]) => sum + packets, 0);
    return [recording, mode, captured, lost].map(String);
  });
  // The newest first.
  assert.deepEqual(shown.map((cells) => [cells[0], cells[2], cells[5], cells[6]]), told.reverse());
  assert.match(shown[0][1], /mix\.pcap tcp closed/);
  clean(page);
  await page.context().close();
});

test("a flow is labelled for training, and a question kept for everybody", async (t) => {
  const log = recorded(t);
  const state = join(directory(t), "state");
  const { address } = await serve(t, log, "--state", state);
  const page = await open(browser, `${address}/search?filter=tcp+port+443`);
  await page.getByRole("gridcell").first().click();
  await page.waitForURL(/flow/);
  await page.getByText("Label this flow, to train on").click();
  await page.getByLabel("It is").fill("exfiltration");
  await page.getByRole("button", { name: "Label", exact: true }).click();
  await page.getByText(/^Done: .*labelled exfiltration/).waitFor();
  const flow = new URL(page.url()).searchParams.get("flow").split("_");
  const labels = readFileSync(join(state, "labels.json"), "utf8").trim().split("\n").map((line) => JSON.parse(line));
  for (const one of labels) {
    assert.equal(one.label, "exfiltration");
    assert.deepEqual([one["id.orig_h"], one["id.resp_h"]].sort(), [flow[1], flow[3]].sort());
  }
  await page.goto(`${address}/ask?language=marple`);
  const text = page.getByRole("textbox", { name: /Marple/ });
  await text.fill("heavy_hitters");
  await page.getByRole("button", { name: "Save this query" }).click();
  await page.getByRole("heading", { name: "Saved for all users" }).waitFor();
  const other = await open(browser, `${address}/ask?language=marple`);
  await other.getByRole("button", { name: "Delete heavy_hitters" }).waitFor();
  await other.getByRole("button", { name: "Delete heavy_hitters" }).click();
  await other.getByRole("heading", { name: "Saved for all users" }).waitFor({ state: "detached" });
  await page.goto(`${address}/storage`);
  await page.getByText("saved the query 'heavy_hitters'").waitFor();
  clean(page);
  clean(other);
  await page.context().close();
  await other.context().close();
});

test("a question in SQL is answered with what tcpdump counts", async (t) => {
  const program = sql();
  const not = program === null && "strata-sql is not built: make sql, or make tests";
  if (not) return process.env.CI ? assert.fail(not) : t.skip(not);
  const log = recorded(t);
  const path = `${dirname(program)}:${process.env.PATH}`;
  const { address } = await served(t, [log], { env: { ...process.env, PATH: path } });
  const page = await open(browser, `${address}/ask?language=sql`);
  const ask = page.getByRole("button", { name: "Ask", exact: true });
  const text = page.getByRole("textbox", { name: "SQL" });
  await text.fill(
    "SELECT CASE WHEN wire_bytes >= 500 THEN 'large' ELSE 'small' END AS size, count(*) AS n FROM packets GROUP BY 1 ORDER BY 1",
  );
  await ask.click();
  const answer = page.getByRole("grid", { name: /^Answer/ });
  await answer.waitFor();
  const told = await answer.getByRole("gridcell").allTextContents();
  const counted = (filter) =>
    /(\d+) packets/.exec(execFileSync("tcpdump", ["-n", "--count", "-r", CAPTURE, filter], { cwd: root, stdio: ["ignore", "pipe", "ignore"] }))?.[1];
  assert.deepEqual(
    told.map((cell) => cell.replaceAll(",", "")),
    ["large", counted("greater 500"), "small", counted("less 499")],
  );
  await text.fill("SELECT nothing FROM packets");
  await ask.click();
  // In the words of the engine, with the column that is not there.
  await page.locator(".notice.bad", { hasText: "nothing" }).waitFor();
  await accessible(page);
  clean(page);
  await page.context().close();
});

/** A pcapng file whose interface and comments would run as a script, were they taken for HTML. */
function hostileCapture() {
  const script = `<img src=x onerror="document.title='broken'"><script>document.title='broken'</script>`;
  const padded = (bytes) => Buffer.concat([bytes, Buffer.alloc((4 - (bytes.length % 4)) % 4)]);
  const option = (code, text) => {
    const bytes = Buffer.from(text);
    const head = Buffer.alloc(4);
    head.writeUInt16LE(code, 0);
    head.writeUInt16LE(bytes.length, 2);
    return Buffer.concat([head, padded(bytes)]);
  };
  const block = (kind, body) => {
    const length = body.length + 12;
    const ends = Buffer.alloc(8);
    ends.writeUInt32LE(kind, 0);
    ends.writeUInt32LE(length, 4);
    return Buffer.concat([ends, body, ends.subarray(4)]);
  };
  const section = Buffer.alloc(16);
  section.writeUInt32LE(0x1a2b3c4d, 0);
  section.writeUInt16LE(1, 4);
  section.fill(0xff, 8);
  const face = Buffer.from([1, 0, 0, 0, 0, 0, 4, 0]);
  const end = Buffer.alloc(4);
  const payload = Buffer.from(`GET /${script} HTTP/1.1\r\nHost: ${script}\r\nUser-Agent: ${script}\r\n\r\n`);
  const packets = Array.from({ length: 20 }, (_, number) => {
    const frame = tcp(number, payload);
    const head = Buffer.alloc(20);
    const at = 1_700_000_000_000_000n + BigInt(number * 1000);
    head.writeUInt32LE(Number(at >> 32n), 4);
    head.writeUInt32LE(Number(at & 0xffffffffn), 8);
    head.writeUInt32LE(frame.length, 12);
    head.writeUInt32LE(frame.length, 16);
    return block(6, Buffer.concat([head, padded(frame), option(1, script), end]));
  });
  return Buffer.concat([
    block(0x0a0d0d0a, section),
    block(1, Buffer.concat([face, option(2, script), option(3, script), end])),
    ...packets,
  ]);
}

/** An Ethernet frame with a TCP segment of a connection to port 80. */
function tcp(number, payload) {
  const frame = Buffer.alloc(54);
  frame.writeUInt16BE(0x0800, 12);
  frame.writeUInt8(0x45, 14);
  frame.writeUInt16BE(40 + payload.length, 16);
  frame.writeUInt8(64, 22);
  frame.writeUInt8(6, 23);
  frame.set([198, 51, 100, 7, 198, 51, 100, 8], 26);
  frame.writeUInt16BE(40000, 34);
  frame.writeUInt16BE(80, 36);
  frame.writeUInt32BE(1 + number * payload.length, 38);
  frame.writeUInt8(0x50, 46);
  frame.writeUInt8(0x18, 47);
  frame.writeUInt16BE(0xffff, 48);
  return Buffer.concat([frame, payload]);
}

test("scripts in host names, payload, comments, interfaces and policies do not run", async (t) => {
  const folder = directory(t);
  const capture = join(folder, "hostile.pcapng");
  writeFileSync(capture, hostileCapture());
  const log = join(folder, "log");
  run("record", "-r", capture, "-o", log, "--mode", "log-all", "--detail", "none");
  const { address } = await serve(t, log);
  const page = await open(browser, `${address}/search`);
  await page.getByRole("grid").getByText("198.51.100.7:40000").waitFor();
  const shown = async () => {
    assert.match(await page.title(), /Strata$/);
    assert.equal(await page.locator("main img, main script").count(), 0);
    await fits(page);
  };
  await shown();
  await page.getByRole("grid").press("Enter");
  await page.waitForURL(/\/flow/);
  await page.getByRole("row").nth(1).waitFor();
  await shown();
  await page.getByRole("grid").press("Enter");
  await page.locator("pre.hex").getByText("script").first().waitFor();
  for (const tree of await page.locator(".tree > li > details > summary").all()) await tree.click();
  await shown();
  const script = "<script>document.title='broken'</script>";
  for (const path of ["/search?filter=", "/policies?match=", "/ask?text=", "/why?log=", "/nothing?x="]) {
    await page.goto(`${address}${path}${encodeURIComponent(script)}`);
    await page.locator("main h1, main [role=alert], main form").first().waitFor();
    await shown();
  }
  clean(page);
  await page.context().close();
});

/** Views of the docs: where, and what is in sight when all is there. */
const SHOTS = [
  ["now", "/now", ".top-list li"],
  ["search", "/search?log=1", "[role=gridcell]"],
  ["why", "/why?log=1", ".reason"],
  ["policies", `/policies?match=${encodeURIComponent("tcp port 443")}&action=header`, ".tried b"],
  ["ask", "/ask?log=1", ".beside li"],
  ["storage", "/storage?log=1", ".hours li"],
];
const WINDOWS = [
  ["light", { width: 1100, height: 760 }],
  ["dark", { width: 1100, height: 760, dark: true }],
  ["phone", { width: 375, height: 740 }],
  ["phone-dark", { width: 375, height: 740, dark: true }],
];

const bless = { skip: !process.env.STRATA_BLESS && "STRATA_BLESS=1 makes them" };
test("screenshots of each view for the docs", bless, async (t) => {
  assert.equal(mayRecord(), null, "one of them is of a recording");
  const folder = new URL("../../docs/serve/", import.meta.url).pathname;
  mkdirSync(folder, { recursive: true });
  const logs = directory(t);
  run("record", "-r", CAPTURE, "-o", join(logs, "demo"));
  const { socket } = await recording(t, logs);
  const { address } = await served(t, ["edge", "demo", "--socket", socket], { cwd: logs });
  for (const [look, window] of WINDOWS) {
    const page = await open(browser, `${address}/now`, window);
    const shot = async (name) => {
      await page.getByText("live", { exact: true }).waitFor();
      await page.screenshot({ path: join(folder, `${name}-${look}.png`) });
    };
    await until("something is drawn", async () => {
      const drawn = await page.locator(".legend b").allTextContents();
      return drawn.some((text) => /^[1-9]/.test(text));
    });
    // Some seconds of traffic, so that there is a picture of it.
    for (let last = "", changes = 0; changes < 15; changes += 1) {
      last = await until("the rate changes", async () => {
        const now = await page.locator(".legend").textContent();
        return now !== last && now;
      });
    }
    for (const [name, path, ready] of SHOTS) {
      if (name !== "now") await page.goto(`${address}${path}`);
      await page.locator(ready).first().waitFor();
      await shot(name);
    }
    await page.goto(`${address}/search?log=1&filter=host+178.62.197.130`);
    await page.getByRole("gridcell").first().click();
    await page.waitForURL(/flow/);
    await page.locator(".figures").waitFor();
    await page.getByRole("gridcell").nth(4).waitFor();
    await shot("flow");
    await page.getByRole("gridcell").nth(4).click();
    await page.locator("pre.hex").waitFor();
    await shot("packet");
    await page.context().close();
  }
});
