// Answers that come in many pieces, that have no end, and that fail in the middle: what is in sight is
// then never said to be all of it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { accessible, clean, fits, launch, open } from "./browser.mjs";
import { BREAK, HANG, mock, ofSchema } from "./mock.mjs";

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

async function served(options, act, window = {}) {
  const server = await mock(options);
  const page = await open(browser, server.address + options.at, window);
  try {
    await act(page, server);
    clean(page);
  } finally {
    await page.context().close();
    server.close();
  }
}

/** A promise, and what fulfils it. */
function gate() {
  let open;
  const opened = new Promise((fulfil) => (open = fulfil));
  return { opened, open };
}

const FLOW = "/flow?log=0&flow=6_10.0.0.1_51234_10.0.0.2_443&filter=tcp";
const flow = ofSchema("Flow");
/** Of the flow when the first of its packets were read, and at the end. */
const first = { ...flow, packets: 20, packets_back: 15, wire_bytes: 403_000, kept_bytes: 2_600 };
const whole = {
  ...flow,
  packets: 51,
  packets_back: 50,
  wire_bytes: 1_210_000,
  kept_bytes: 7_000,
  class: "benign",
  classes: [
    { class: "benign", packets: 60 },
    { class: "anomalous", packets: 41 },
  ],
};
const histogram = ofSchema("SearchResult").histogram;
const result = { ...ofSchema("SearchResult"), flows: 1, listed: 1, packets: 101, wire_bytes: 1_210_000, kept_bytes: 7_000 };
const begin = { event: "begin", search: "1" };
const progress = (share, packets) => ({ event: "progress", share, flows: 1, packets, histogram, rows: share < 0.2 ? [first] : [] });
const done = { event: "done", search: "1", result };
const flows = { total: 1, offset: 0, rows: [whole] };
/** Many pieces, as a large log has them. */
const pieces = [begin, progress(0.1, 35), ...Array.from({ length: 60 }, (_, n) => progress(0.2 + n / 100, 35 + n))];

/** Every sum that was true before the end stands with the words that say so. */
async function onlySoFar(page, text) {
  const bare = await page.evaluate((text) => {
    const found = [];
    const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
      if (!node.textContent.includes(text)) continue;
      const said = /so far/i.test(node.parentElement.textContent) || node.parentElement.closest(".so-far");
      if (!said) found.push(node.parentElement.outerHTML.slice(0, 200));
    }
    return found;
  }, text);
  assert.deepEqual(bare, []);
}

test("a flow has its sums when all of it was counted, and before that only what is so far", async () => {
  const more = gate();
  const search = () => [...pieces, more.opened];
  await served({ at: FLOW, over: { search, flows } }, async (page) => {
    await page.getByText("35 packets, 403 kB so far").waitFor();
    await onlySoFar(page, "35");
    assert.equal(await page.locator(".figures").count(), 0);
    await accessible(page);
    more.open(done);
    const figures = page.locator(".figures");
    await figures.getByText("101", { exact: true }).waitFor();
    await figures.getByText("packets, 50 back").waitFor();
    await figures.getByText("1.21 MB").waitFor();
    assert.equal(await page.getByText("35 packets").count(), 0);
    assert.equal(await page.getByText(/so far/i).count(), 0);
    // Its packets are of two classes: the one of most is not all.
    await page.getByText("benign 60 packets, anomalous 41 packets").waitFor();
  });
});

test("a flow that no search finds is reported without sums", async () => {
  await served({ at: FLOW, over: { search: [begin, done], flows: { total: 0, offset: 0, rows: [] } } }, async (page) => {
    await page.getByText("The search does not find this flow: its totals are not known.").waitFor();
    assert.equal(await page.locator(".figures").count(), 0);
  });
});

test("a flow is looked for beyond the first page of a result", async () => {
  const pages = (url) => {
    const offset = Number(url.searchParams.get("offset"));
    const others = Array.from({ length: 1000 }, (_, n) => ({ ...flow, id: `other${offset + n}` }));
    return { total: 1001, offset, rows: offset === 0 ? others : [whole] };
  };
  await served({ at: FLOW, over: { search: [begin, done], flows: pages } }, async (page) => {
    await page.locator(".figures").getByText("101", { exact: true }).waitFor();
  });
});

test("a search that goes on says so far of all that it shows, on a phone too", async () => {
  for (const window of [{}, { width: 375, height: 740, dark: true }]) {
    const more = gate();
    await served(
      { at: "/search", over: { search: () => [...pieces, more.opened], flows } },
      async (page) => {
        await page.getByText(/^Searching, 79\.0 %: 1 flow, 94 packets so far$/).waitFor();
        await page.locator(".so-far", { has: page.getByRole("region", { name: "Over time" }) }).getByText("So far").waitFor();
        await page.locator(".so-far", { has: page.getByRole("grid") }).getByText("So far").waitFor();
        await onlySoFar(page, "403 kB");
        await onlySoFar(page, "35");
        // What is downloaded, and what is narrowed by, is of a search at its end.
        assert.equal(await page.getByText("Download", { exact: true }).count(), 0);
        await accessible(page);
        await fits(page);
        more.open(done);
        await page.getByText("1 flow, 101 packets, 1.21 MB on the wire, 7 kB kept").waitFor();
        await page.getByRole("grid", { name: "Flows, 1 rows" }).getByText("7 kB").waitFor();
        assert.equal(await page.getByText(/so far/i).count(), 0);
        assert.equal(await page.getByText("403 kB").count(), 0);
      },
      window,
    );
  }
});

test("a search without an end never looks like one at its end", async () => {
  for (const at of ["/search", FLOW]) {
    await served({ at, over: { search: [...pieces, HANG] } }, async (page) => {
      await page.getByText(/so far/i).first().waitFor();
      await onlySoFar(page, "35");
      await onlySoFar(page, "94");
      assert.equal(await page.getByText(/^(No flow matches|The search does not find|Whole)/).count(), 0);
      assert.equal(await page.locator(".figures").count(), 0);
      // The packets of a flow are their own answer, at its end.
      if (at === "/search") assert.equal(await page.getByText(/^Download$|searched in/).count(), 0);
    });
  }
});

test("a search begun shows nothing of the one before", async () => {
  const over = {
    search: (url) => (url.searchParams.get("filter") ? [{ event: "begin", search: "2" }, HANG] : [begin, done]),
    flows,
  };
  await served({ at: "/search", over }, async (page) => {
    await page.getByText("1 flow, 101 packets, 1.21 MB on the wire, 7 kB kept").waitFor();
    await page.getByRole("combobox", { name: "Filter" }).fill("udp");
    await page.getByRole("combobox", { name: "Filter" }).press("Enter");
    await page.getByText(/^Searching, /).waitFor();
    for (const gone of [page.getByRole("complementary", { name: "Narrow" }), page.getByRole("grid"), page.getByText("Download", { exact: true })]) {
      await gone.waitFor({ state: "detached" });
    }
    assert.equal(await page.getByText("101").count(), 0);
  });
});

const failed = { event: "error", problem: { ...ofSchema("Error"), error: "the log went away", code: "internal", field: null } };
/** Ends of an answer that is not whole, and the message about each. */
const ENDS = [
  ["fails", [failed], "the log went away"],
  ["loses its connection", [BREAK], "the answer was cut off"],
  ["ends without its last event", [], "the answer was cut off"],
  ["ends within an event", [JSON.stringify(done).slice(0, 99)], "the answer was cut off"],
];

for (const [what, end, said] of ENDS) {
  test(`an answer that ${what} is no answer`, async () => {
    const search = [...pieces, ...end];
    await served({ at: "/search", over: { search, flows } }, async (page) => {
      await page.getByRole("alert").getByText(said).waitFor();
      // Of what came before the connection broke, a browser may have read nothing yet.
      await page.getByText(/^(The search did not finish|The log was not searched)/).waitFor();
      assert.equal(await page.getByRole("grid").count(), 0);
      await onlySoFar(page, "35");
      await onlySoFar(page, "94");
    });
    await served({ at: FLOW, over: { search, flows } }, async (page) => {
      await page.getByRole("alert").getByText(said).waitFor();
      assert.equal(await page.locator(".figures").count(), 0);
      assert.equal(await page.getByText("The search does not find").count(), 0);
    });
    const session = ofSchema("Session");
    const recorders = [{ ...session.recorders[0], log: session.logs[0].id }];
    await served({ at: "/now", over: { search, session: { ...session, recorders } } }, async (page) => {
      const talkers = page.getByRole("region", { name: /^Most traffic/ });
      await talkers.getByRole("alert").getByText(said).waitFor();
      assert.equal(await talkers.getByRole("meter").count(), 0);
      assert.equal(await talkers.getByText("No packets of the last 5 min in the log yet").count(), 0);
    });
    const verify = [{ event: "progress", share: 0.4 }, ...end];
    await served({ at: "/storage", over: { verify } }, async (page) => {
      await page.getByRole("button", { name: "Verify" }).click();
      await page.getByRole("alert").getByText(said).waitFor();
      assert.equal(await page.getByText(/^Intact:/).count(), 0);
      assert.equal(await page.getByRole("button", { name: "Verify" }).isEnabled(), true);
    });
  });
}

test("of what could not all be read, sums say that they are of what was", async () => {
  const covered = { ...ofSchema("Covered"), complete: false, why: "it took longer than 60 s" };
  const search = [begin, { ...done, result: { ...result, covered } }];
  for (const at of ["/search", FLOW]) {
    await served({ at, over: { search, flows } }, async (page) => {
      await page.getByText(/in the part that was read/i).first().waitFor();
      if (at === "/search") {
        await page.getByText(/^1 flow, 101 packets.*in the part that was read: see below$/).waitFor();
        await page.getByText("it took longer than 60 s").waitFor();
        await page.locator(".so-far", { has: page.getByRole("complementary", { name: "Narrow" }) }).waitFor();
      } else {
        await page.locator(".so-far .figures").getByText("101", { exact: true }).waitFor();
      }
      await accessible(page);
    });
  }
  const reasons = { ...ofSchema("Reasons"), covered };
  await served({ at: "/why", over: { reasons } }, async (page) => {
    await page.locator(".so-far .reasons").waitFor();
  });
});

test("what is of one log, flow or time is not shown for another while that is read", async () => {
  const second = gate();
  const storage = (url) => (url.pathname.includes("/logs/1/") ? second.opened : { ...ofSchema("Storage"), stored_bytes: 123_000_000_000 });
  const session = ofSchema("Session");
  const logs = [...session.logs.slice(0, 1), { id: "1", path: "/other" }];
  await served({ at: "/storage?log=0", over: { session: { ...session, logs }, storage } }, async (page) => {
    await page.getByText("123 GB", { exact: true }).waitFor();
    await page.getByRole("combobox", { name: /^Log/ }).selectOption("1");
    await page.getByText("123 GB", { exact: true }).waitFor({ state: "detached" });
    second.open({ ...ofSchema("Storage"), stored_bytes: 456_000_000_000 });
    await page.getByText("456 GB", { exact: true }).waitFor();
  });
});

test("an answer shows the amount that it counts, largest first, and ports as they are", async () => {
  const answer = {
    ...ofSchema("Answer"),
    columns: [
      { name: "srcip", type: "text", measure: false },
      { name: "srcport", type: "number", measure: false },
      { name: "count", type: "number", measure: true },
    ],
    rows: [
      ["10.0.0.9", 443, 90_000],
      ["10.0.0.1", 51_234, 700],
      ["10.0.0.2", 60_000, 3],
    ],
    sorted_by: 2,
  };
  const bar = (page) => page.getByRole("list", { name: "count as bars" });
  await served({ at: "/ask?language=marple&text=x", over: { ask: answer, askable: { ...ofSchema("Askable"), marple: { available: true, problem: null } } } }, async (page) => {
    await page.getByRole("button", { name: "Ask", exact: true }).click();
    await bar(page).waitFor();
    assert.deepEqual(await bar(page).getByRole("listitem").allInnerTexts().then((all) => all.map((text) => text.split("\n"))), [
      ["10.0.0.9 · 443", "90,000"],
      ["10.0.0.1 · 51234", "700"],
      ["10.0.0.2 · 60000", "3"],
    ]);
    const head = page.getByRole("columnheader", { name: /count/ });
    assert.equal(await head.getAttribute("aria-sort"), "descending");
    const firstCell = () => page.getByRole("gridcell").first().textContent();
    assert.equal(await firstCell(), "10.0.0.9");
    await head.getByRole("button").click();
    await page.waitForFunction(() => document.querySelector("[role=gridcell]").textContent === "10.0.0.2");
    assert.equal(await head.getAttribute("aria-sort"), "ascending");
    await accessible(page);
  });
});
