// Builds the page into dist/: index.html, one script, one style sheet, each also compressed.
// `--types` only makes the types of the API's client.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import openapiTS, { astToString } from "openapi-typescript";

const here = new URL("./", import.meta.url);
const at = (path) => new URL(path, here);

/** The contract between `strata serve` and the page. */
const CONTRACT = at("../crates/run/serve/openapi.yaml");
/** Bound of the whole page as it is sent, in bytes. */
const BOUND = 300_000;

async function types() {
  const tree = await openapiTS(CONTRACT, { alphabetize: true });
  const head = "// Made by build.mjs from openapi.yaml.\n";
  writeFileSync(at("src/api/schema.d.ts"), head + astToString(tree));
}

async function page() {
  rmSync(at("dist"), { recursive: true, force: true });
  mkdirSync(at("dist"));
  const made = await build({
    absWorkingDir: here.pathname,
    entryPoints: ["src/main.tsx"],
    bundle: true,
    minify: true,
    format: "esm",
    target: ["es2022"],
    jsx: "automatic",
    jsxImportSource: "preact",
    outdir: "dist",
    write: false,
    legalComments: "eof",
    logLevel: "warning",
  });
  const files = new Map([["icon.svg", readFileSync(at("src/icon.svg"))]]);
  const names = {};
  for (const { path, contents } of made.outputFiles) {
    const kind = path.endsWith(".css") ? "css" : "js";
    const hash = createHash("sha256").update(contents).digest("hex").slice(0, 12);
    names[kind] = `page-${hash}.${kind}`;
    files.set(names[kind], contents);
  }
  const html = readFileSync(at("src/index.html"), "utf8")
    .replace("page.js", names.js)
    .replace("page.css", names.css);
  files.set("index.html", Buffer.from(html));
  let sent = 0;
  for (const [name, bytes] of files) {
    const compressed = gzipSync(bytes, { level: 9 });
    writeFileSync(at(`dist/${name}`), bytes);
    writeFileSync(at(`dist/${name}.gz`), compressed);
    sent += compressed.length;
  }
  console.log(`page/dist: ${sent} bytes compressed`);
  if (sent > BOUND) {
    throw new Error(`the page has ${sent} bytes compressed; its bound is ${BOUND}`);
  }
}

await types();
if (!process.argv.includes("--types")) await page();
