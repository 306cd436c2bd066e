// A download of exactly what is shown, and the command line that makes the same file.
import type { ComponentChildren } from "preact";
import { address } from "../api/client";
import type { SearchResult } from "../api/client";
import { Command } from "./bits";

interface What {
  log: string;
  filter?: string;
  from?: string;
  to?: string;
  class?: string;
  reason?: string;
  granularity?: string;
  flow?: string;
}

const FORMATS = [
  ["pcapng", "Packets, pcapng"],
  ["packets-parquet", "Packets, Parquet"],
  ["csv", "Flows, CSV"],
  ["json", "Flows, JSON"],
  ["flows-parquet", "Flows, Parquet"],
] as const;

/** What has a reason and a granularity. */
const PACKETS: readonly string[] = ["pcapng", "packets-parquet"];

export function Downloads(props: {
  what: What;
  command: SearchResult["command"] | { pcapng: string } | null;
  /** Whether this user may have what contains payload: packets, and flows with URIs and names from it. */
  payload: boolean;
  /** What one should know of all of them. */
  children?: ComponentChildren;
}) {
  const { log, ...query } = props.what;
  const commands: Partial<Record<string, string>> = props.command ?? {};
  // Flows have no reason and no granularity; their packets have.
  const packetsOnly = !!(query.reason || query.granularity);
  const offered = FORMATS.filter(
    ([format]) => (props.payload || format === "packets-parquet") && (!packetsOnly || PACKETS.includes(format)),
  );
  return (
    <details class="menu">
      <summary>Download</summary>
      <div class="menu-body wide">
        {props.children}
        {!props.payload && <p>Only users who may view payload can download packets with their bytes, and flows.</p>}
        {props.command && <p class="quiet">Next to each download is the command line that writes the same file.</p>}
        <ul class="downloads">
          {offered.map(([format, name]) => {
            const command = commands[format.replace("-", "_")];
            return (
              <li key={format}>
                <a
                  class="button"
                  download
                  href={address("export", { path: { log }, query: { ...query, format } as never })}
                >
                  {name}
                </a>
                {command && <Command text={command} label={`Command line of ${name}`} />}
              </li>
            );
          })}
        </ul>
      </div>
    </details>
  );
}
