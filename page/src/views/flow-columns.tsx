// What can be shown of a flow.
import { type Flow, nanoseconds } from "../api/client";
import { bytes, count, duration, percent, plural, time } from "../format";
import { Address } from "../ui/bits";
import type { Column } from "../ui/table";

export function end(address: string, port: number | null | undefined): string {
  if (address === "") return "–";
  if (port == null) return address;
  return address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
}

export function seconds(flow: Flow): number {
  return Number(nanoseconds(flow.last) - nanoseconds(flow.first)) / 1e9;
}

export const columns: Column<Flow>[] = [
  { key: "first", name: "Start", width: 6.9, sorts: true, cell: (flow) => time(nanoseconds(flow.first)) },
  {
    key: "duration",
    name: "Duration",
    width: 6,
    number: true,
    sorts: true,
    cell: (flow) => duration(seconds(flow)),
  },
  { key: "protocol", name: "Proto", width: 3.2, sorts: true, cell: (flow) => flow.protocol },
  { key: "src", name: "From", width: 8, grow: 2, sorts: true, cell: (flow) => <Address of={end(flow.src, flow.src_port)} owner={flow.src_owner} /> },
  { key: "dst", name: "To", width: 8, grow: 2, sorts: true, cell: (flow) => <Address of={end(flow.dst, flow.dst_port)} owner={flow.dst_owner} /> },
  { key: "name", name: "Name", width: 4.5, grow: 2, sorts: true, cell: (flow) => flow.name ?? "" },
  {
    key: "packets",
    name: "Packets",
    width: 4.4,
    number: true,
    sorts: true,
    cell: (flow) => count(flow.packets + flow.packets_back),
  },
  {
    key: "wire_bytes",
    name: "Bytes",
    width: 4.4,
    number: true,
    sorts: true,
    cell: (flow) => bytes(flow.wire_bytes),
  },
  {
    key: "kept_bytes",
    name: "Kept",
    width: 4.4,
    number: true,
    sorts: true,
    cell: (flow) => bytes(flow.kept_bytes),
  },
  { key: "class", name: "Class", width: 7.2, sorts: true, cell: (flow) => <Classes of={flow} /> },
  {
    key: "score",
    name: "Sure",
    width: 4.5,
    number: true,
    sorts: true,
    cell: (flow) => (flow.score === null ? "" : percent(flow.score)),
  },
  { key: "last", name: "End", width: 7.5, sorts: true, cell: (flow) => time(nanoseconds(flow.last)) },
  { key: "community_id", name: "Community ID", width: 16, cell: (flow) => flow.community_id ?? "" },
];

export const DEFAULT = [
  "first",
  "protocol",
  "src",
  "dst",
  "name",
  "packets",
  "wire_bytes",
  "kept_bytes",
  "class",
];
/** On a phone: the port below its address, since flows differ by their ports. */
export const NARROW: Column<Flow>[] = columns
  .filter(({ key }) => ["src", "dst", "kept_bytes"].includes(key))
  .map((column) => {
    if (column.number) return { ...column, width: 4.2 };
    const side = column.key === "src" ? "src" : "dst";
    const cell = (flow: Flow) => (
      <span class="two-lines">
        <span>{flow[side] || "–"}</span>
        <span>{flow[`${side}_port`] == null ? "" : `port ${flow[`${side}_port`]}`}</span>
      </span>
    );
    return { ...column, width: 6.4, cell };
  });

/** The class of most of a flow's packets; where some have another, how many of these there are. */
function Classes({ of: flow }: { of: Flow }) {
  const others = flow.classes.filter((one) => one.class !== flow.class);
  const worst = others.find((one) => one.class !== "benign") ?? others[0];
  if (!worst) return <ClassName of={flow.class} />;
  const each = flow.classes.map((one) => `${one.class} ${plural(one.packets, "packet")}`).join(", ");
  return (
    <span title={each}>
      <ClassName of={flow.class} />{" "}
      <span class={`class ${kind(worst.class)}`}>
        +{others.length}
        <span class="unseen"> {each}</span>
      </span>
    </span>
  );
}

function kind(name: string): string {
  return name === "benign" ? "" : name === "unclassified" ? "warn" : "bad";
}

export function ClassName(props: { of: string }) {
  return <span class={`class ${kind(props.of)}`}>{props.of}</span>;
}
