// A packet: why it was kept, what it says, its bytes, and what is missing of it.
import { useState } from "preact/hooks";
import { call, nanoseconds, type Field, type PacketDetail } from "../api/client";
import { bytes, dayTime, plural, zone } from "../format";
import { useLoad } from "../hooks";
import type { View } from "../main";
import { changed, link } from "../router";
import { Card, Loading, Notice, Problem } from "../ui/bits";
import { keptAs } from "../ui/colour";
import { Hex } from "../ui/hex";
import { WhyWords } from "../ui/why";
import { ClassName } from "./flow-columns";

export interface Range {
  start: number;
  length: number;
}

export function PacketView({ place, session }: View) {
  const log = place.query.get("log") ?? "";
  const id = place.query.get("packet") ?? "";
  const may = session.roles.includes("payload");
  const payload = may && place.query.get("payload") !== "no";
  const packet = useLoad<PacketDetail>(
    (signal) => call("packet", { path: { log, packet: id }, query: { payload }, signal }),
    [log, id, payload],
    [log, id],
  );
  const [range, setRange] = useState<Range | null>(null);
  const one = packet.data;
  const flow = link("/flow", {
    log,
    flow: one?.flow ?? place.query.get("flow"),
    filter: place.query.get("filter"),
    from: place.query.get("from"),
    to: place.query.get("to"),
  });
  return (
    <>
      <p class="crumbs">
        <a href={link("/search", { log })}>Search</a> › <a href={flow}>flow</a> › packet
      </p>
      <Loading when={packet.loading && !one} />
      <Problem of={packet.problem} again={packet.again} />
      {one && (
        <>
          <h1>
            {one.packet.src} → {one.packet.dst}
          </h1>
          <p>
            {one.packet.summary} · {dayTime(nanoseconds(one.packet.at), 9)} {zone(nanoseconds(one.packet.at))} ·{" "}
            <ClassName of={one.packet.class ?? "unclassified"} />
          </p>
          <Card title="Why it was kept">
            <WhyWords of={one.why} />
          </Card>
          <Kept of={one} />
          <div class="packet">
            <Card
              title={one.dissection.by === "tshark" ? "Dissected by tshark" : "Headers"}
              side={
                may && (
                  <a href={changed(place, { payload: payload ? "no" : null })}>
                    {payload ? "Headers only" : "Show payload"}
                  </a>
                )
              }
            >
              {one.dissection.problem && <Notice kind="warn">{one.dissection.problem}</Notice>}
              <ul class="tree">
                {one.dissection.layers.map((layer, index) => (
                  <Layer key={index} field={layer} choose={setRange} open={false} />
                ))}
              </ul>
            </Card>
            <Card title="Bytes">
              <Hex hex={one.bytes} chosen={range} headers={one.header_bytes} />
            </Card>
          </div>
        </>
      )}
    </>
  );
}

function Kept({ of: one }: { of: PacketDetail }) {
  const { wire_bytes, kept_bytes, granularity } = one.packet;
  return (
    <>
      <p>
        {kept_bytes >= wire_bytes
          ? `Complete: ${wire_bytes === 1 ? "its byte is" : `all ${plural(wire_bytes, "byte")} are`} in the log.`
          : `Kept ${keptAs(granularity)}: ${plural(kept_bytes, "byte")} of ${plural(wire_bytes, "byte")}.`}
      </p>
      {one.missing && (
        <Notice kind="info">
          {bytes(one.missing.bytes)} of the packet are not in the log: {one.missing.why}
        </Notice>
      )}
      {one.payload_hidden && (
        <Notice kind="info">Its payload is in the log but not shown: you are viewing headers only.</Notice>
      )}
    </>
  );
}

/** Deepest nesting shown; tshark's own is far less. */
const DEEPEST = 12;

function Layer(props: { field: Field; choose: (range: Range | null) => void; open: boolean; depth?: number }) {
  const { field, choose, depth = 0 } = props;
  const select = () => {
    if (field.start != null && field.length) choose({ start: field.start, length: field.length });
  };
  if (field.fields.length === 0 || depth >= DEEPEST) {
    return (
      <li>
        <button type="button" class="plain field" onClick={select} onFocus={select}>
          {field.label}
        </button>
      </li>
    );
  }
  return (
    <li>
      <details open={props.open}>
        <summary onClick={select} onFocus={select}>
          {field.label}
        </summary>
        <ul>
          {field.fields.map((inner, index) => (
            <Layer key={index} field={inner} choose={choose} open={false} depth={depth + 1} />
          ))}
        </ul>
      </details>
    </li>
  );
}
