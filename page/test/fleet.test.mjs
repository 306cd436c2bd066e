// The fleet in a real browser, fed by a mock server: whether sums close, what hosts lack, a controller that is gone.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { clean, launch, open } from "./browser.mjs";
import { mock, ofSchema } from "./mock.mjs";

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

async function served(over, act, at = "/fleet") {
  const server = await mock({ over });
  try {
    const page = await open(browser, server.address + at);
    await act(page, server);
    clean(page);
    await page.context().close();
  } finally {
    server.close();
  }
}

const ZERO = { name: "", identity: 0, exported: 0, received: 0, lost: 0, before: 0, missing: 0 };

/** A destination with this sum. */
function destination(name, closes, sum, doubts = []) {
  const whole = { ...ZERO, ...sum };
  const sums = [{ ...whole, name: "web-1:tap0", identity: 1 }];
  return { ...ofSchema("Fleet").destinations[0], name, closes, sums, sum: whole, doubts };
}

test("it says of each sum whether it closes, does not close, or is unknown", async () => {
  const fleet = {
    ...ofSchema("Fleet"),
    destinations: [
      destination("whole", true, { exported: 606_924, received: 606_867, lost: 57 }),
      destination("open", false, { exported: 1_000_010, received: 1_000_000, lost: 3, missing: 7 }),
      destination("dark", null, { exported: 5, received: 5 }, ["packets that these agents have exported are not in the sums: web-2"]),
      destination("partly", null, { exported: 5, received: 5 }, ["7 packets exported without numbers: by VXLAN"]),
    ],
  };
  await served({ fleet }, async (page) => {
    const card = (name) => page.getByRole("region", { name: `Exported to ${name}`, exact: true });
    await card("whole").getByText("The sum closes: 606,924 exported = 606,867 received + 57 lost.").waitFor();
    const open = card("open").getByRole("alert");
    assert.match(await open.textContent(), /^The sum does not close: 1,000,010 exported, 1,000,000 received \+ 3 lost, and 7 packets of which/);
    await card("dark").getByText("Whether the sum closes is unknown").waitFor();
    await card("dark").getByText("not in the sums: web-2").waitFor();
    assert.equal(await card("dark").getByText(/^The sum closes/).count(), 0);
    await card("partly").getByText("7 packets exported without numbers").waitFor();
    assert.equal(await card("partly").getByText(/^The sum closes/).count(), 0);
    const rows = card("open").getByRole("row");
    const cells = await rows.nth(1).locator("th, td").allTextContents();
    assert.deepEqual(cells, ["web-1:tap0", "1", "1,000,010", "1,000,000", "3", "0", "7"]);
  });
});

test("it shows silence, clocks, versions and losses of hosts, and their details", async () => {
  const silent = ofSchema("Fleet").listed[0];
  const well = {
    ...silent,
    ...{ name: "web-1", state: "up", heard_seconds: 1, clock_offset_ms: 2, clock_is_off: false },
    ...{ version: 7, behind_why: null, kernel_dropped: 0, lost: 0, problem: "", exports: [] },
  };
  const fleet = { ...ofSchema("Fleet"), listed: [silent, well] };
  await served({ fleet }, async (page) => {
    const row = (name) => page.getByRole("row").filter({ has: page.getByRole("rowheader", { name, exact: true }) });
    await row("web-2").waitFor();
    const cells = await row("web-2").locator("th, td").allTextContents();
    assert.deepEqual(cells.slice(0, 8), [
      ...["web-2", "silent", "5 min 12 s ago", "1.83 s behind", "6 of 7 silent", "1", "12", "4"],
    ]);
    await page.getByText("analyser: no route to host").waitFor();
    await page.getByText("2 further hosts").waitFor();
    await page.getByRole("button", { name: "Details of web-2" }).click();
    await page.getByRole("region", { name: "Interfaces of web-2" }).getByText("libvirt blue-1").waitFor();
    await page.getByText("rack=7").waitFor();
    await page.getByRole("button", { name: "Needs attention" }).click();
    assert.equal(await row("web-1").count(), 0);
    assert.equal(await row("web-2").count(), 1);
    assert.match(page.url(), /hosts=attention/);
  });
});

test("a controller that is gone is reported, and its last answer is marked as old", async () => {
  let gone = false;
  const error = { error: "the controller that ran with this directory was killed", code: "controller" };
  const fleet = () => (gone ? { status: 502, body: error } : ofSchema("Fleet"));
  await served({ fleet }, async (page) => {
    await page.getByRole("heading", { name: "Hosts" }).waitFor();
    gone = true;
    await page.getByText(error.error).waitFor();
    await page.getByText(/What follows is from 2026-01-31 13:05:00/).waitFor();
  });
});

test("an answer that takes longer than the time between two requests is waited for", async () => {
  let requests = 0;
  const fleet = async () => {
    requests += 1;
    await new Promise((done) => setTimeout(done, 4000));
    return ofSchema("Fleet");
  };
  await served({ fleet }, async (page) => {
    await page.getByRole("heading", { name: "Hosts" }).waitFor();
    assert.equal(requests, 1);
  });
});

test("without --fleet there is no such view, and its address says how to have it", async () => {
  const session = { ...ofSchema("Session"), fleet: null };
  await served({ session }, async (page) => {
    await page.getByText("start strata serve with --fleet").waitFor();
    assert.equal(await page.getByRole("navigation").getByText("Fleet").count(), 0);
  });
});

test("a server of a fleet alone begins with it", async () => {
  const session = { ...ofSchema("Session"), logs: [], recorders: [] };
  await served(
    { session },
    async (page) => {
      await page.getByRole("heading", { name: "Fleet" }).waitFor();
      await page.waitForURL(/\/fleet$/);
    },
    "/",
  );
});
