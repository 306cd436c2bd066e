// Amounts, times and links, compared with what Intl and Date of the browser's engine say.
import assert from "node:assert/strict";
import { test } from "node:test";
import { build } from "esbuild";

process.env.TZ = "Europe/Berlin";

async function load(entry) {
  const made = await build({
    entryPoints: [new URL(`../src/${entry}`, import.meta.url).pathname],
    bundle: true,
    write: false,
    format: "esm",
    jsx: "automatic",
    jsxImportSource: "preact",
  });
  return import(`data:text/javascript;base64,${Buffer.from(made.outputFiles[0].contents).toString("base64")}`);
}

test("amounts have three digits and their unit", async () => {
  const { bytes, byteRate, count, duration, percent } = await load("format.ts");
  assert.equal(bytes(0), "0 B");
  assert.equal(bytes(999), "999 B");
  assert.equal(bytes(1_500_000), "1.50 MB");
  assert.equal(bytes(1_234_567), "1.23 MB");
  assert.equal(byteRate(91_234_567), "91.2 MB/s");
  assert.equal(count(12_345), "12,345");
  assert.equal(percent(0.00001), "< 0.01 %");
  assert.equal(percent(0.99999), "99.99 %");
  assert.equal(percent(1), "100 %");
  assert.equal(duration(0.00002), "20 µs");
  assert.equal(duration(3_700), "1 h 1 min");
  assert.equal(duration(86_400), "1 d");
  // Every size has its prefix as Intl's compact notation has it.
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  for (let size = 1_000; size < 1e14; size *= 7.3) {
    const ours = Number.parseFloat(bytes(size));
    assert.equal(ours, Number.parseFloat(compact.format(size)), `${size}`);
  }
});

test("times keep every nanosecond, in the zone of the reader", async () => {
  const { nanoseconds, rfc3339 } = await load("api/client.ts");
  const { dayTime, fromLocal, toLocal, zone } = await load("format.ts");
  const at = nanoseconds("2026-07-31T22:30:00.123456789Z");
  assert.equal(at, 1785537000123456789n);
  assert.equal(rfc3339(at), "2026-07-31T22:30:00.123456789Z");
  assert.equal(dayTime(at, 9), "2026-08-01 00:30:00.123456789");
  assert.equal(zone(at), "UTC+02:00");
  assert.equal(fromLocal(toLocal(at)), at - 456789n);
  assert.equal(toLocal(at - 123456789n), "2026-08-01 00:30:00");
  assert.equal(fromLocal("yesterday"), null);
});

test("a stack of series keeps what came before the page was opened", async () => {
  const { fromTicks, joined, total } = await load("ui/series.tsx");
  const rate = (value) => ({
    class: "benign",
    granularity: "header",
    packets_per_second: value,
    captured_bytes_per_second: value,
    kept_bytes_per_second: value,
  });
  const before = {
    t: [10, 11, 12],
    of: [{ class: "benign", granularity: "header", packets: [1, 2, 3], captured_bytes: [1, 2, 3], kept_bytes: [1, 2, 3] }],
  };
  const live = fromTicks([
    { at: 12.5, tick: { up: true, classes: [rate(4)] } },
    { at: 13.5, tick: { up: false, classes: [rate(5)] } },
    { at: 14.5, tick: { up: true, classes: [{ ...rate(6), class: "scan" }] } },
  ]);
  const all = joined(before, live, 100);
  assert.deepEqual(all.t, [10, 11, 12, 12.5, 13.5, 14.5]);
  // While the recorder did not answer nothing is known, which is not the same as nothing.
  assert.deepEqual(total(all, "packets"), [1, 2, 3, 4, null, 6]);
});

test("the filter of a flow is the server's", async () => {
  const { filterOf } = await load("format.ts");
  for (const [id, filter] of [
    ["6_10.0.0.1_443_10.0.0.2_51234", "tcp and host 10.0.0.1 and host 10.0.0.2 and port 443 and port 51234"],
    ["17_::1_53_2001:db8::1_40000", "udp and host ::1 and host 2001:db8::1 and port 53 and port 40000"],
    ["1_10.0.0.1_0_10.0.0.2_0", "ip proto 1 and host 10.0.0.1 and host 10.0.0.2"],
    ["58_::1_0_::2_0", "ip6 proto 58 and host ::1 and host ::2"],
    ["e_00:1b:21:00:00:01_0_00:1b:21:00:00:02_0", "ether host 00:1b:21:00:00:01 and ether host 00:1b:21:00:00:02"],
    ["", ""],
    ["6_10.0.0.1", ""],
  ]) {
    assert.equal(filterOf(id), filter);
  }
});

test("a tick of a time axis begins with the hour, however short the axis is", async () => {
  const { clock } = await load("ui/chart.tsx");
  const at = Date.parse("2026-01-31T12:13:20.040Z") / 1000;
  assert.equal(clock(at, 0.005), "13:13:20.040");
  assert.equal(clock(at, 0.02), "13:13:20.04");
  assert.equal(clock(at, 0.5), "13:13:20.0");
  assert.equal(clock(at, 1), "13:13:20");
  assert.equal(clock(at, 60), "13:13");
});
