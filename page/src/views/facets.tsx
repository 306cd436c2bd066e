// What the packets found are: class, granularity, reason, addresses, ports. A click narrows.
import type { SearchResult } from "../api/client";
import { bytes, count } from "../format";
import { changed, type Place } from "../router";
import { useDark } from "../theme";
import { Swatch } from "../ui/chart";
import { colour, compare, kept } from "../ui/colour";
import type { Asked } from "./search";
import { portFilter } from "./talkers";

export function Facets(props: { place: Place; what: Asked; result: SearchResult }) {
  const { place, what, result } = props;
  const dark = useDark();
  const narrowTo = (filter: string) =>
    changed(place, { filter: what.filter === "" ? filter : `(${what.filter}) and ${filter}` });
  return (
    <aside class="card facets" aria-label="Narrow">
      <Facet name="Class">
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
      <Facet name="Reason">
        {result.reasons.slice(0, 12).map((one) => (
          <Item
            key={`${one.reason} ${one.class} ${one.granularity}`}
            to={changed(place, { reason: one.reason })}
            packets={one.packets}
            bytes={one.kept_bytes}
          >
            {one.words}
          </Item>
        ))}
      </Facet>
      <Facet name="Address">
        {result.top.addresses.slice(0, 10).map((one) => (
          <Item key={one.what} to={narrowTo(`host ${one.what}`)} packets={one.packets} bytes={one.wire_bytes}>
            {one.what}
          </Item>
        ))}
      </Facet>
      <Facet name="Port">
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

function Facet(props: { name: string; children: preact.ComponentChildren }) {
  return (
    <details open>
      <summary>{props.name}</summary>
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
