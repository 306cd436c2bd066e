// Each view in a real browser, fed by a mock server: what it shows, says and refuses.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { accessible, clean, fits, launch, open, valued } from "./browser.mjs";
import { mock, moving, ofSchema } from "./mock.mjs";

const VIEWS = {
  now: "/now",
  search: "/search",
  flow: "/flow?log=0&flow=6_10.0.0.1_51234_10.0.0.2_443&filter=tcp",
  packet: "/packet?log=0&packet=x",
  why: "/why",
  policies: "/policies",
  ask: "/ask",
  fleet: "/fleet",
  storage: "/storage",
};
/** What is in sight once a view has its data. */
const READY = {
  now: "text=What to do",
  search: "[role=gridcell]",
  flow: "text=TCP SYN",
  packet: "text=the forest classifies this flow",
  why: "text=Show its flows",
  policies: "text=net 10.0.0.0/8",
  ask: "text=heavy_hitters",
  fleet: "text=Whether the sum closes is unknown",
  storage: "text=incident 7",
};

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

async function served(options, act, window = {}) {
  const server = await mock(options);
  try {
    const page = await open(browser, server.address + (options.at ?? "/"), window);
    await act(page, server);
    clean(page);
    await page.context().close();
  } finally {
    server.close();
  }
}

for (const [name, path] of Object.entries(VIEWS)) {
  test(`${name}: readable by all, on a phone too, in both themes`, async () => {
    for (const window of [{ dark: false }, { dark: true, width: 375, height: 740 }]) {
      await served(
        { at: path },
        async (page) => {
          await page.locator(READY[name]).first().waitFor();
          await accessible(page);
          await fits(page);
          assert.match(await page.title(), / – Strata$/);
        },
        window,
      );
    }
  });
}

/** Would run in a page that took it for HTML. */
const HOSTILE =
  `"><img src=x onerror="document.title='broken'"><script>document.title='broken'</script>` +
  `<svg onload="document.title='broken'">javascript:alert(1)\u0000\u202e{{7*7}}`;

/** The same structure with every text hostile, but for those that a program reads. */
function poisoned(value, key = "") {
  const machine = ["id", "at", "first", "last", "from", "to", "state", "granularity", "protocol", "bytes", "flow", "up"];
  const enums = ["event", "tier", "direction", "decider", "by", "language", "type", "hour", "oldest", "newest", "login"];
  if (typeof value === "string") return [...machine, ...enums].includes(key) ? value : HOSTILE;
  if (Array.isArray(value)) return key === "roles" ? value : value.map((one) => poisoned(one, key));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, poisoned(one, name)]));
  }
  return value;
}

/** As an answer of a server that has names of networks. */
function withOwners(owner) {
  const flow = { ...ofSchema("Flow"), src_owner: null, dst_owner: owner };
  const result = ofSchema("SearchResult");
  result.top.addresses = result.top.addresses.map((one) => ({ ...one, owner }));
  return { flow, result };
}

test("nothing that came from packets, policies or recorders is taken for HTML", async () => {
  const { flow, result } = withOwners(ofSchema("Owner"));
  const over = {
    session: { ...poisoned(ofSchema("Session")), version: "1" },
    events: [poisoned(ofSchema("Tick").recorders[0].events[0])],
    recorders: [poisoned(ofSchema("Recorder"))],
    policies: [poisoned(ofSchema("Policy"))],
    logs: [poisoned(ofSchema("Log"))],
    search: [
      { event: "begin", search: "1" },
      { event: "progress", share: 0.5, flows: 1, rows: [poisoned(flow)] },
      { event: "done", search: "1", result: poisoned(result) },
    ],
    flows: { total: 1, offset: 0, rows: [poisoned(flow)] },
    packet: {
      packet: poisoned(ofSchema("Packet")),
      flow: "x",
      recording: 1,
      interface: 0,
      link: HOSTILE,
      bytes: "3c7363726970743e",
      header_bytes: 4,
      payload_hidden: true,
      missing: { bytes: 9, why: HOSTILE },
      why: poisoned(ofSchema("Why")),
      dissection: {
        by: "tshark",
        problem: HOSTILE,
        layers: [{ ...poisoned(ofSchema("Field")), fields: [poisoned(ofSchema("Field"))] }],
      },
    },
    reasons: {
      total: { reasons: 2, packets: 1, kept_bytes: 1 },
      kinds_in_all: 1,
      kinds: [
        {
          ...{ words: HOSTILE, class: HOSTILE, granularity: "full", reasons: 2, packets: 1, kept_bytes: 1 },
          largest: {
            ...{ reason: HOSTILE, score: 0.5, packets: 1, kept_bytes: 1 },
            ...{ first: ofSchema("Packet").at, first_flow: HOSTILE, flow: null, more_trees: 0 },
            trees: poisoned(ofSchema("Why").trees),
            signs: poisoned(ofSchema("Why").signs),
          },
        },
      ],
      covered: ofSchema("Covered"),
    },
    storage: poisoned(ofSchema("Storage")),
    models: [poisoned(ofSchema("Recording"))],
    askable: { ...ofSchema("Askable"), questions: [{ language: "marple", name: HOSTILE, what: HOSTILE, text: HOSTILE, params: [] }] },
    audit: [poisoned(ofSchema("AuditEvent"))],
    fleet: poisoned(ofSchema("Fleet")),
  };
  const ticks = (turn) => ({ at: Date.now() / 1000, recorders: moving(turn).recorders.map((one) => poisoned(one)) });
  for (const path of Object.values(VIEWS)) {
    await served({ at: path, over, ticks }, async (page) => {
      await page.getByText("{{7*7}}").first().waitFor();
      assert.match(await page.title(), / – Strata$/);
      assert.equal(await page.locator("main img, main script, main svg, main iframe").count(), 0);
      await fits(page);
    });
  }
});

test("an error in a filter stands at its place, and words are offered", async () => {
  const error = ofSchema("Error");
  const over = {
    checkFilter: (url) => ({ error: url.searchParams.get("filter").includes("hots") ? { ...error, start: 8, end: 12 } : null }),
  };
  await served({ at: "/search", over }, async (page) => {
    const input = page.getByRole("combobox", { name: "Filter" });
    await input.fill("tcp and hots 10.0.0.1");
    await page.getByText("no word of the filter language").waitFor();
    assert.equal(await page.locator("mark").textContent(), "hots");
    assert.equal(await input.getAttribute("aria-invalid"), "true");
    await input.fill("ho");
    await page.getByRole("option", { name: /host/ }).waitFor();
    await input.press("ArrowDown");
    await input.press("Enter");
    assert.equal(await input.inputValue(), "host ");
  });
});

test("whose an address is stands next to it, in the direction of its own text", async () => {
  const { flow, result } = withOwners({ name: "\u202ebew", country: "DE", as: "AS64500 Example", problem: null });
  const search = [
    { event: "begin", search: "1" },
    { event: "done", search: "1", result },
  ];
  const over = { search, flows: { total: 1, offset: 0, rows: [flow] } };
  for (const at of ["/search", "/now", VIEWS.flow]) {
    await served({ at, over }, async (page) => {
      const owner = page.locator("main bdi").first();
      await owner.waitFor();
      assert.equal(await owner.textContent(), "\u202ebew · DE · AS64500 Example");
      assert.equal(await owner.evaluate((one) => getComputedStyle(one).unicodeBidi), "isolate");
      await accessible(page);
      await fits(page);
    });
  }
});

test("a search is a URL, and the way back leads to it", async () => {
  await served({ at: "/search" }, async (page) => {
    const input = page.getByRole("combobox", { name: "Filter" });
    await input.fill("tcp port 443");
    await input.press("Enter");
    await page.waitForURL(/filter=tcp\+port\+443/);
    await page.getByRole("link", { name: "10.0.0.1", exact: true }).click();
    await page.waitForURL(/host\+10\.0\.0\.1/);
    await valued(input, "(tcp port 443) and host 10.0.0.1");
    await page.goBack();
    await valued(input, "tcp port 443");
    await page.reload();
    await valued(page.getByRole("combobox", { name: "Filter" }), "tcp port 443");
  });
});

const MANY = 100_000;

test("100,000 rows are scrolled, and only those in sight exist", async () => {
  const flow = ofSchema("Flow");
  const asked = [];
  const over = {
    search: [
      { event: "begin", search: "1" },
      { event: "done", search: "1", result: { ...ofSchema("SearchResult"), flows: MANY, listed: MANY } },
    ],
    flows: (url) => {
      const offset = Number(url.searchParams.get("offset"));
      const limit = Number(url.searchParams.get("limit"));
      asked.push([url.searchParams.get("sort"), url.searchParams.get("order"), offset]);
      const rows = Array.from({ length: Math.min(limit, MANY - offset) }, (_, step) => ({
        ...flow,
        id: `f${offset + step}`,
        name: `row ${offset + step}`,
      }));
      return { total: MANY, offset, rows };
    },
  };
  await served({ at: "/search", over }, async (page) => {
    const grid = page.getByRole("grid");
    await page.getByText("row 0", { exact: true }).waitFor();
    for (const share of [0.25, 0.5, 0.9, 0.1, 1]) {
      await grid.evaluate((grid, share) => (grid.scrollTop = grid.scrollHeight * share), share);
      const about = Math.min(Math.floor(MANY * share), MANY - 1);
      await page.waitForFunction(
        ([about]) => {
          const cells = [...document.querySelectorAll("[role=gridcell]")];
          const names = cells.map((cell) => /^row (\d+)$/.exec(cell.textContent)?.[1]);
          return names.some((name) => name !== undefined && Math.abs(Number(name) - about) < 60);
        },
        [about],
      );
      assert.ok((await page.getByRole("row").count()) < 60);
    }
    await page.getByText(`row ${MANY - 1}`, { exact: true }).waitFor();
    // Keys reach every row too.
    await grid.focus();
    await grid.press("Home");
    await page.getByText("row 0", { exact: true }).waitFor();
    await grid.press("End");
    await page.getByText(`row ${MANY - 1}`, { exact: true }).waitFor();
    await page.getByRole("button", { name: "Kept" }).last().click();
    await page.waitForURL(/sort=kept_bytes/);
    await grid.press("Home");
    await page.getByText("row 0", { exact: true }).waitFor();
    assert.ok(asked.some(([sort, order]) => sort === "kept_bytes" && order === "desc"));
    await grid.press("Enter");
    await page.waitForURL(/\/flow\?.*flow=f0/);
  });
});

test("the way back from a flow leads to its row, and a phone shows its ports", async () => {
  const listed = 900;
  const flow = ofSchema("Flow");
  const over = {
    search: [
      { event: "begin", search: "1" },
      { event: "done", search: "1", result: { ...ofSchema("SearchResult"), flows: listed, listed } },
    ],
    flows: (url) => {
      const offset = Number(url.searchParams.get("offset"));
      const rows = Array.from({ length: 200 }, (_, step) => ({ ...flow, id: `f${offset + step}`, src_port: 10_000 + offset + step }));
      return { total: listed, offset, rows };
    },
  };
  for (const window of [{}, { width: 375, height: 740 }]) {
    await served({ at: "/search", over }, async (page) => {
      const grid = page.getByRole("grid");
      await page.getByText("10000").first().waitFor();
      await grid.evaluate((grid) => (grid.scrollTop = 400 * 30));
      await page.getByText("10405").click();
      await page.waitForURL(/flow=f405/);
      await page.goBack();
      await page.getByText("10405").waitFor();
      const chosen = page.getByRole("row", { selected: true });
      assert.match(await chosen.textContent(), /10405/);
      // Neither end of the port is cut off.
      const cut = await chosen.evaluate((row) =>
        [...row.querySelectorAll("span, div")].some((one) => /10405/.test(one.textContent) && one.scrollWidth > one.clientWidth + 1),
      );
      if (window.width) assert.equal(cut, false);
    }, window);
  }
});

test("a flow says that only a part of it is shown, and which policy is for it already", async () => {
  const session = ofSchema("Session");
  const flow = ofSchema("Flow");
  const over = {
    session: { ...session, recorders: [{ ...session.recorders[0], log: "0" }] },
    flows: { total: 1, offset: 0, rows: [flow] },
    policies: [{ ...ofSchema("Policy"), match: flow.filter, action: "header" }, { ...ofSchema("Policy"), id: 9 }],
  };
  const at = `/flow?log=0&flow=${flow.id}&from=1769864400&to=1769864460`;
  await served({ at, over }, async (page) => {
    await page.getByText("A policy for exactly this flow is in force: header").waitFor();
    await page.getByText("from 2026-01-31 13:00:00 UTC to 2026-01-31 13:01:00 UTC").waitFor();
    await page.getByRole("link", { name: "show the whole flow" }).click();
    await page.waitForURL((url) => !url.searchParams.has("from") && !url.searchParams.has("to"));
  });
});

test("keys come past the facets to the flows", async () => {
  await served({ at: "/search" }, async (page) => {
    await page.locator(READY.search).first().waitFor();
    await page.getByRole("link", { name: "Skip to the flows" }).focus();
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "flows");
    await page.getByRole("grid").waitFor();
  });
});

test("a million rows are within reach of the scroll bar", async () => {
  const listed = 1_000_000;
  const flow = ofSchema("Flow");
  const over = {
    search: [
      { event: "begin", search: "1" },
      { event: "done", search: "1", result: { ...ofSchema("SearchResult"), flows: listed, listed } },
    ],
    flows: (url) => {
      const offset = Number(url.searchParams.get("offset"));
      const rows = Array.from({ length: 200 }, (_, step) => ({ ...flow, name: `row ${offset + step}` }));
      return { total: listed, offset, rows };
    },
  };
  await served({ at: "/search", over }, async (page) => {
    const grid = page.getByRole("grid");
    await page.getByText("row 0", { exact: true }).waitFor();
    await grid.focus();
    await grid.press("End");
    await page.getByText(`row ${listed - 1}`, { exact: true }).waitFor();
    await grid.evaluate((grid) => (grid.scrollTop = grid.scrollHeight / 2));
    await page.getByText(/^row 5000\d\d$/).first().waitFor();
  });
});

test("a stream that breaks is reported, and goes on when the server is back", async () => {
  const server = await mock();
  const port = Number(new URL(server.address).port);
  const page = await open(browser, `${server.address}/now`);
  await page.getByText("live", { exact: true }).waitFor();
  server.close();
  await page.getByText("reconnecting …").waitFor();
  await page.getByText("The values shown are old").waitFor();
  const again = await mock({ port });
  await page.getByText("live", { exact: true }).waitFor();
  assert.equal(await page.getByText("The values shown are old").count(), 0);
  again.close();
  await page.context().close();
});

/** What the page's objects take, after garbage is collected. */
async function heap(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.collectGarbage");
  const { usedSize } = await session.send("Runtime.getHeapUsage");
  await session.detach();
  return usedSize;
}

test("memory is flat over half an hour of live updates", async () => {
  let sent = 0;
  const event = ofSchema("Tick").recorders[0].events[0];
  // A second of a recording each time, as fast as the page takes them; now and then an event.
  const ticks = (turn) => {
    sent = turn;
    const tick = moving(turn);
    tick.at = 1_769_864_400 + turn;
    tick.recorders[0].events = turn % 50 === 0 ? [{ ...event, id: `${turn}` }] : [];
    return tick;
  };
  await served({ at: "/now", ticks, every: 10 }, async (page) => {
    const after = async (count) => {
      while (sent < count) await page.waitForTimeout(50);
      return heap(page);
    };
    const filled = await after(950);
    const later = await after(1900);
    assert.ok(later < filled * 1.2 + 2e6, `${filled} bytes after 15 minutes, ${later} after 30`);
  });
});

test("the chart is drawn when it has moved, not with each tick", async () => {
  let sent = 0;
  const ticks = (turn) => {
    sent = turn;
    const tick = moving(turn);
    tick.at = 1_769_864_400 + turn;
    return tick;
  };
  await served({ at: "/now", ticks, every: 20 }, async (page) => {
    const until = async (count) => {
      while (sent < count) await page.waitForTimeout(20);
    };
    // The axis of five minutes is full.
    await until(320);
    await page.evaluate(() => {
      window.drawn = 0;
      const { clearRect } = CanvasRenderingContext2D.prototype;
      CanvasRenderingContext2D.prototype.clearRect = function (...place) {
        window.drawn += 1;
        return clearRect.apply(this, place);
      };
    });
    const first = sent;
    await until(first + 200);
    const [drawn, passed] = [await page.evaluate(() => window.drawn), sent - first];
    assert.ok(drawn >= passed / 3 && drawn <= passed / 2 + 5, `${drawn} times in ${passed} ticks`);
  });
});

test("an expired session asks for the token, and goes on where it was", async () => {
  let expired = true;
  const refused = { status: 401, body: { error: "the session has expired: log in again", code: "login" } };
  const over = {
    session: () => (expired ? refused : undefined),
    login: (_, request) => {
      assert.equal(request.headers["x-strata"], "1");
      expired = false;
      return undefined;
    },
  };
  await served({ at: "/search?filter=tcp", over }, async (page) => {
    await page.getByLabel("Token").fill("secret");
    await accessible(page);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByText("example.org").first().waitFor();
    assert.equal(await page.getByRole("combobox", { name: "Filter" }).inputValue(), "tcp");
    const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));
    assert.ok(!kept.includes("secret"), "the token is not kept in the browser");
  });
});

test("a session that ends while one looks asks for the token", async () => {
  let expired = false;
  const refused = { status: 401, body: { error: "the session has expired: log in again", code: "login" } };
  const over = { session: () => (expired ? refused : undefined), live: () => (expired ? refused : undefined) };
  await served({ at: "/now", over }, async (page, server) => {
    await page.getByText("live", { exact: true }).waitFor();
    expired = true;
    server.drop();
    await page.getByLabel("Token").waitFor();
  });
});

test("several recorders stand side by side, and one of them is a URL", async () => {
  const session = ofSchema("Session");
  const second = { id: "1", socket: "/run/strata/record-42/control.sock", log: null };
  const ticks = (turn) => {
    const tick = moving(turn);
    const down = { ...tick.recorders[0], id: "1", up: false, error: "its socket has no listener" };
    return { ...tick, recorders: [...tick.recorders, down] };
  };
  const over = { session: { ...session, recorders: [...session.recorders, second] } };
  await served({ at: "/now", over, ticks }, async (page) => {
    await page.getByText("its socket has no listener").waitFor();
    assert.equal(await page.getByRole("article").count(), 2);
    await accessible(page);
    await page.getByRole("button", { name: "record-42" }).click();
    await page.waitForURL(/recorder=1/);
    assert.equal(await page.getByRole("article").count(), 1);
  });
});

test("a time is chosen by typing it, and by dragging over the histogram", async () => {
  await served({ at: "/search" }, async (page) => {
    const from = page.getByLabel(/^From/);
    await valued(from, "2026-01-31 12:00:00");
    // The log is being recorded: a search without an end goes to what is there by then.
    await valued(page.getByLabel(/^To/), "");
    await from.fill("tomorrow");
    await page.getByRole("combobox", { name: "Filter" }).press("Enter");
    await page.locator("input.time:invalid:focus").waitFor();
    assert.equal(new URL(page.url()).search, "");
    await from.fill("2026-01-31 12:10:00");
    await page.getByRole("combobox", { name: "Filter" }).press("Enter");
    await page.waitForURL(/from=1769861400$/);
    const plot = await page.locator(".u-over").boundingBox();
    await page.mouse.move(plot.x + plot.width * 0.5, plot.y + 20);
    await page.mouse.down();
    await page.mouse.move(plot.x + plot.width * 0.75, plot.y + 30, { steps: 5 });
    await page.mouse.up();
    await page.waitForURL(/to=/);
    const query = new URL(page.url()).searchParams;
    // The histogram of the example has 20 s from 13:00.
    assert.ok(Math.abs(Number(query.get("from")) - 1769864410) < 2, query.get("from"));
    assert.ok(Math.abs(Number(query.get("to")) - 1769864415) < 2, query.get("to"));
    // The inputs say exactly what is searched.
    for (const [label, name] of [[/^From/, "from"], [/^To/, "to"]]) {
      const at = new Date(Number(query.get(name)) * 1000).toISOString();
      await valued(page.getByLabel(label), at.slice(0, 19).replace("T", " "));
    }
  });
});

test("who may only look is offered no change", async () => {
  const session = { ...ofSchema("Session"), roles: ["look"] };
  for (const [at, ready] of [
    ["/now", READY.now],
    ["/policies", READY.policies],
    ["/why", READY.why],
    ["/packet?log=0&packet=x", READY.packet],
    [`${VIEWS.flow}&label=1`, "text=strata labels add"],
    ["/ask", "text=Saved for all users"],
  ]) {
    await served({ at, over: { session } }, async (page) => {
      await page.locator(ready).first().waitFor();
      const change =
        /Change mode|^Add$|Remove|Show payload|Acknowledge|^Label$|Keep (only|this)|Stop keeping|^Save|^Delete/;
      assert.equal(await page.getByRole("button", { name: change }).count(), 0);
      assert.equal(await page.getByRole("link", { name: change }).count(), 0);
    });
  }
});

test("a refusal is shown in the server's words", async () => {
  const busy = { status: 503, body: { error: "too many searches at a time: try again in 2 s", code: "busy" } };
  await served({ at: "/search", over: { search: busy } }, async (page) => {
    await page.getByRole("alert").getByText("too many searches at a time").waitFor();
    await page.getByRole("button", { name: "Try again" }).waitFor();
  });
});

test("a search that was refused lists nothing, and does not say that nothing matches", async () => {
  const error = { ...ofSchema("Error"), error: "no word of the filter language", code: "invalid", field: "filter", start: 0, end: 4 };
  const late = [{ event: "begin", search: "1" }, { event: "error", problem: { error: "the log went away", code: "internal" } }];
  for (const search of [{ status: 400, body: error }, late]) {
    await served({ at: "/search?filter=hots", over: { search, checkFilter: { error } } }, async (page) => {
      await page.getByText("The log was not searched").waitFor();
      assert.equal(await page.getByText("No flow matches.").count(), 0);
      assert.equal(await page.getByText("Download", { exact: true }).count(), 0);
      const { width } = await page.getByRole("region", { name: "Flows" }).boundingBox();
      assert.ok(width > 1000, `${width} px of 1280`);
    });
  }
});

test("a packet of which all bytes are there lacks nothing, whatever the mode was to keep of it", async () => {
  const detail = ofSchema("PacketDetail");
  const packet = { ...detail.packet, granularity: "partial", wire_bytes: 60, kept_bytes: 60 };
  await served({ at: VIEWS.packet, over: { packet: { ...detail, packet, missing: null } } }, async (page) => {
    await page.getByText("Complete: all 60 bytes are in the log.").waitFor();
  });
});

test("a reason leads to a policy for its example flow, which says that it is no more", async () => {
  const flow = "6_10.0.0.1_51234_10.0.0.2_443";
  const { total, covered } = ofSchema("Reasons");
  const reason = {
    ...{ reason: "flow-trees:1", score: 0.9, packets: 2, kept_bytes: 900, first: ofSchema("Packet").at },
    ...{ first_flow: "10.0.0.1:51234 - 10.0.0.2:443", flow, signs: [], trees: [], more_trees: 0 },
  };
  const kind = { words: "28 of 30 trees", class: "botnet", granularity: "full", reasons: 3, packets: 7, kept_bytes: 1900 };
  const over = { reasons: { total, covered, kinds_in_all: 1, kinds: [{ ...kind, largest: reason }] } };
  await served({ at: "/why", over }, async (page) => {
    await page.getByText("The largest of them kept 900 B in 2 packets:").waitFor();
    await page.getByText(reason.first_flow).waitFor();
    await page.getByRole("link", { name: "Keep only headers of this example flow" }).click();
    const match = page.getByRole("combobox", { name: "Packets that match" });
    await valued(match, "tcp and host 10.0.0.1 and host 10.0.0.2 and port 51234 and port 443");
    const note = page.getByText("This filter matches only the example flow");
    await note.waitFor();
    await match.fill("tcp and host 10.0.0.1");
    await note.waitFor({ state: "detached" });
  });
});

test("losses say their share, when and what to do, and what was sampled out is no secret", async () => {
  await served({ at: "/now" }, async (page) => {
    const losses = page.getByRole("region", { name: "Losses", exact: true }).first();
    // 12 of the 4000 captured and the 12 that were lost before.
    await losses.getByText("0.30 %").waitFor();
    await losses.getByText("13:04:00 to 13:04:09").waitFor();
    await losses.getByText("try -B 2048").waitFor();
    // 1000 of the 4000 captured.
    await losses.getByText(/1,000 packets.*25\.0 %.*sampled out/).waitFor();
  });
});

test("packets that may be copies are said, also where no copy was left out", async () => {
  const [one] = ofSchema("Tick").recorders[0].not_kept;
  const ticks = (turn) => {
    const tick = moving(turn);
    tick.recorders[0].not_kept = [{ ...one, how: "duplicates", packets: 0, bytes: 0, uncompared_packets: 7 }];
    return tick;
  };
  await served({ at: "/now", ticks }, async (page) => {
    const losses = page.getByRole("region", { name: "Losses", exact: true }).first();
    await losses.getByText(/7 packets could not be compared/).waitFor();
    assert.equal(await losses.getByText("Deliberately not kept").count(), 0);
  });
});

test("a search says what no search finds, since it was sampled out", async () => {
  const log = ofSchema("Log");
  const closed = { ...log.recordings[0], captured_packets: 300, not_kept: [{ how: "sampled_out", packets: 100, bytes: 9 }] };
  const runs = { ...closed, id: 2, state: "recording", captured_packets: null, not_kept: null };
  const session = ofSchema("Session");
  const recorder = {
    ...ofSchema("Recorder"),
    log: log.id,
    status: { packets: [["filtered", 7], ["logged", 60], ["sampled_out", 40]].map(([result, packets]) => ({ result, packets })) },
  };
  const over = {
    session: { ...session, recorders: [{ ...session.recorders[0], log: log.id }] },
    logs: [{ ...log, recordings: [closed, runs] }],
    recorders: [recorder],
  };
  await served({ at: "/search", over }, async (page) => {
    // 140 of 400.
    await page.getByText(/Sampled out.*140 packets \(35\.0 %/).first().waitFor();
    await page.getByText("Download", { exact: true }).click();
    const menu = page.locator(".menu-body.wide");
    await menu.getByText(/140 packets/).waitFor();
    // Each file stands beside its own command line.
    for (const row of await menu.locator("li").all()) {
      const href = await row.getByRole("link").getAttribute("href");
      const format = new URL(href, "http://x").searchParams.get("format");
      const file = { pcapng: "out.pcapng", csv: "flows.csv", json: "flows.json" }[format] ?? `${format.split("-")[0]}.parquet`;
      await row.getByText(file).waitFor();
    }
    await accessible(page);
  });
});

test("a policy that would take more disk is warned of before it is added", async () => {
  const matched = { flows: 2, packets: 900, wire_bytes: 700_000, kept_bytes: 60_000, covered: ofSchema("Covered") };
  for (const [would, expected] of [
    [{ packets: 9000, kept_bytes: 540_000, now_bytes: 60_000, exact: false }, /about 540 kB.*more than without it.*sample of about 9,000 packets/],
    [{ packets: 900, kept_bytes: 0, now_bytes: 60_000, exact: true }, /With this policy 0 B of them/],
  ]) {
    const over = { checkPolicy: { error: null, matched: { ...matched, would } } };
    await served({ at: "/policies?match=tcp+port+443&action=header", over }, async (page) => {
      await page.locator(".tried").getByText(expected).waitFor();
      assert.equal(await page.locator(".tried .notice.warn", { hasText: "With this policy" }).count(), would.exact ? 0 : 1);
    });
  }
});

test("an open page rests between ticks: nothing is animated, which would be a frame each 16 ms", async () => {
  const ticks = (turn) => {
    const tick = moving(turn);
    for (const resource of tick.recorders[0].resources) resource.used = 0.3 + 0.2 * (turn % 3);
    return tick;
  };
  await served({ at: "/now", ticks, every: 300 }, async (page) => {
    await page.getByText("live", { exact: true }).waitFor();
    const seen = await page.evaluate(async () => {
      const names = new Set();
      for (let frame = 0; frame < 150; frame += 1) {
        await new Promise((next) => requestAnimationFrame(next));
        for (const one of document.getAnimations()) names.add(one.transitionProperty ?? one.animationName);
      }
      return [...names];
    });
    assert.deepEqual(seen, []);
  });
});
