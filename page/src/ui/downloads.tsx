// A download of exactly what is shown, and the command line that makes the same file.
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
  ["csv", "Flows, CSV"],
  ["json", "Flows, JSON"],
  ["parquet", "Packets, Parquet"],
] as const;

export function Downloads(props: { what: What; command: SearchResult["command"] | { pcapng: string } | null }) {
  const { log, ...query } = props.what;
  const commands = props.command ? [...new Set(Object.values(props.command))] : [];
  return (
    <details class="menu">
      <summary>Download</summary>
      <div class="menu-body wide">
        <p>
          {FORMATS.map(([format, name]) => (
            <a
              key={format}
              class="button"
              download
              href={address("export", { path: { log }, query: { ...query, format } as never })}
            >
              {name}
            </a>
          ))}
        </p>
        {commands.length > 0 && <p>The same in a shell:</p>}
        {commands.map((text) => (
          <Command key={text} text={text} />
        ))}
      </div>
    </details>
  );
}
