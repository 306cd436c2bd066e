// What the packets found are: class, granularity, reason, addresses, ports. A click narrows.
import type { SearchResult } from "../api/client";
import { bytes, count, plural } from "../format";
import { changed, link, type Place } from "../router";
import { useDark } from "../theme";
import { Address } from "../ui/bits";
import { Swatch } from "../ui/chart";
import { colour, compare, kept } from "../ui/colour";
import type { Asked } from "./search";
import { portFilter } from "./talkers";

type Told = Pick<SearchResult, "classes" | "reason_words" | "top">;

export function Facets(props: { place: Place; what: Asked; result: Told }) {
  const { place, what, result } = props;
  const dark = useDark();
  const narrowTo = (filter: string) =>
    changed(place, { filter: what.filter === "" ? filter : `(${what.filter}) and ${filter}` });
  return (
    <aside class="card facets" aria-label="Narrow">
      <Facet name="Class" amount="kept">
        {[...result.classes].sort(compare).map((one) => (
          <Item
            key={`${one.class} ${one.granularity}`}
            to={changed(place, { class: one.class, granularity: granularity(one.granularity) })}
            packets={one.packets}
            bytes={one.kept_bytes}
          >
            <Swatch colour={colour(one.class, one.granularity, dark)} /> {one.class}, {kept(one.granularity)}
          </Item>
        ))}
      </Facet>
      <Facet name="Reason" amount="kept">
        {result.reason_words.map((one) => (
          <Item
            key={one.words}
            to={one.reason !== null ? changed(place, { reason: one.reason }) : link("/why", { log: what.log })}
            packets={one.packets}
            bytes={one.kept_bytes}
          >
            {one.words}
            {one.ways > 1 && <small> ({plural(one.ways, "way")}: Why says which)</small>}
          </Item>
        ))}
      </Facet>
      <Facet name="Address" amount="bytes">
        {result.top.addresses.slice(0, 10).map((one) => (
          <Item key={one.what} to={narrowTo(`host ${one.what}`)} packets={one.packets} bytes={one.wire_bytes}>
            <Address of={one.what} owner={one.owner} />
          </Item>
        ))}
      </Facet>
      <Facet name="Port" amount="bytes">
        {result.top.ports.slice(0, 10).map((one) => (
          <Item key={one.what} to={narrowTo(portFilter(one.what))} packets={one.packets} bytes={one.wire_bytes}>
            {one.what}
          </Item>
        ))}
      </Facet>
    </aside>
  );
}

/** Those that can be searched for. */
function granularity(name: string): string | null {
  return ["full", "partial", "header"].includes(name) ? name : null;
}

function Facet(props: { name: string; amount: string; children: preact.ComponentChildren[] }) {
  if (props.children.length === 0) return null;
  return (
    <details open>
      <summary>
        <span>{props.name}</span>
        <small>packets</small>
        <small>{props.amount}</small>
      </summary>
      <ul>{props.children}</ul>
    </details>
  );
}

function Item(props: { to: string; packets: number; bytes: number; children: preact.ComponentChildren }) {
  return (
    <li>
      <a href={props.to}>{props.children}</a>
      <span class="number quiet">{count(props.packets)}</span>
      <span class="number">{bytes(props.bytes)}</span>
    </li>
  );
}
