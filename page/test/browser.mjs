// A real browser for the tests, and what every page of ours must fulfil in it.
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export function executable() {
  const found = process.env.STRATA_CHROMIUM ?? BROWSERS.find((path) => existsSync(path));
  if (!found) throw new Error("no Chromium: on Debian, apt-get install chromium; elsewhere set STRATA_CHROMIUM");
  return found;
}

export function launch() {
  return chromium.launch({
    executablePath: executable(),
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--lang=en-GB"],
    // Inputs of times as most of the world writes them.
    env: { ...process.env, LANGUAGE: "en_GB" },
  });
}

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Opens a page that notes violations of the content security policy and errors. */
export async function open(browser, address, { width = 1280, height = 900, dark = false, ...more } = {}) {
  const context = await browser.newContext({
    viewport: { width, height },
    colorScheme: dark ? "dark" : "light",
    timezoneId: "UTC",
    locale: "en-GB",
    ...more,
  });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  const problems = [];
  await page.exposeFunction("noteViolation", (text) => problems.push(`content security policy: ${text}`));
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) =>
      window.noteViolation(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`),
    );
  });
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    problems.push(`a dialog opened: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("console", (message) => {
    if (/Content.Security.Policy/i.test(message.text())) problems.push(`console: ${message.text()}`);
  });
  page.problems = problems;
  await page.goto(address);
  return page;
}

export function clean(page) {
  assert.deepEqual(page.problems, []);
}

/** What axe-core finds serious or critical; the script comes over the debugger, not the page. */
export async function accessible(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("Runtime.evaluate", { expression: AXE });
  const { violations } = await page.evaluate(() => window.axe.run(document));
  const serious = violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ html }) => html.slice(0, 160)).join(" | ")}`);
  assert.deepEqual(serious, []);
}

/** Waits until an input has a value. */
export async function valued(locator, value) {
  await locator.page().waitForFunction(
    ([input, value]) => input.value === value,
    [await locator.elementHandle(), value],
  );
}

/** Nothing is wider than the window. */
export async function fits(page) {
  const [wide, window, over] = await page.evaluate(() => {
    const over = [...document.querySelectorAll("body *")].filter(
      (one) => !one.closest(".grid, .rows") && one.getBoundingClientRect().right > innerWidth + 1,
    );
    return [document.documentElement.scrollWidth, innerWidth, over.map((one) => `${one.localName}.${one.className}`)];
  });
  assert.ok(wide <= window, `the page is ${wide} px wide in a window of ${window} px: ${over.slice(0, 6).join(", ")}`);
}
