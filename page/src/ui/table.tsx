// A table of any number of rows, of which only those in sight exist.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { grouped } from "../format";

export interface Column<Row> {
  key: string;
  name: string;
  /** Least width, in rem. */
  width: number;
  /** Share of what is left; none without. */
  grow?: number;
  number?: boolean;
  sorts?: boolean;
  cell: (row: Row) => ComponentChildren;
}

interface Props<Row> {
  label: string;
  columns: Column<Row>[];
  total: number;
  /** Undefined while it is not here yet. */
  row: (index: number) => Row | undefined;
  /** Rows that are in sight. */
  want: (from: number, to: number) => void;
  open: (row: Row) => void;
  sort?: string;
  order?: "asc" | "desc";
  onSort?: (key: string) => void;
  height?: number;
  /** Where one was when a row was opened is kept under this name, for the way back. */
  remember?: string;
}

/** Tables that one may come back to. */
const PLACES_MAX = 50;
const places = new Map<string, { top: number; chosen: number; page: number }>();

export const ROW_PX = 30;
/** Browsers do not lay out elements much taller than this. */
const TALLEST_PX = 8_000_000;
/** Between columns, and beside a row, as in the style sheet. */
const GAP_REM = 0.7;
const PAD_REM = 0.6;
/** Rows made above and below those in sight. */
const AROUND = 6;

export function VirtualTable<Row>(props: Props<Row>) {
  const { total, columns, height = 480 } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [chosen, setChosen] = useState(0);
  const visible = Math.max(1, Math.floor(height / ROW_PX) - 1);
  const whole = Math.max(total * ROW_PX, 1);
  const tall = Math.min(whole, TALLEST_PX);
  // Where the table is taller than browsers allow, a pixel of the scroll bar is several of rows.
  const scale = tall > height ? (whole - height) / (tall - height) : 1;
  const first = Math.max(0, Math.floor((top * scale) / ROW_PX) - AROUND);
  const last = Math.min(total, first + visible + 2 * AROUND + 1);
  const shift = first * ROW_PX - top * (scale - 1);

  const kept = useRef(props.remember === undefined ? undefined : places.get(props.remember));
  useEffect(() => {
    const before = kept.current;
    if (!before || total <= before.chosen || !scroller.current) return;
    kept.current = undefined;
    if (props.remember !== undefined) places.delete(props.remember);
    setChosen(before.chosen);
    scroller.current.scrollTop = before.top;
    window.scrollTo(0, before.page);
  }, [total]);
  const open = (index: number, row: Row) => {
    if (props.remember !== undefined) {
      places.delete(props.remember);
      places.set(props.remember, { top: scroller.current?.scrollTop ?? 0, chosen: index, page: window.scrollY });
      const oldest = places.keys().next().value;
      if (places.size > PLACES_MAX && oldest !== undefined) places.delete(oldest);
    }
    props.open(row);
  };

  useEffect(() => {
    if (total > 0) props.want(first, last);
  }, [first, last, total, props.want]);

  const move = (to: number) => {
    const next = Math.min(Math.max(to, 0), Math.max(total - 1, 0));
    setChosen(next);
    const element = scroller.current;
    if (!element) return;
    const begin = (next * ROW_PX) / scale;
    const inside = (visible - 2) * (ROW_PX / scale);
    if (begin < element.scrollTop) element.scrollTop = begin;
    else if (begin > element.scrollTop + inside) element.scrollTop = begin - inside;
  };

  const onKey = (event: KeyboardEvent) => {
    const steps: Record<string, number> = {
      ArrowDown: chosen + 1,
      ArrowUp: chosen - 1,
      PageDown: chosen + visible,
      PageUp: chosen - visible,
      Home: 0,
      End: total - 1,
    };
    const to = steps[event.key];
    if (to !== undefined) {
      event.preventDefault();
      move(to);
    } else if (event.key === "Enter") {
      const row = props.row(chosen);
      if (row !== undefined) open(chosen, row);
    }
  };

  const widths = columns.map(({ width, grow }) => (grow ? `minmax(${width}rem, ${grow}fr)` : `${width}rem`)).join(" ");
  const least = columns.reduce((sum, { width }) => sum + width, 0) + (columns.length - 1) * GAP_REM + 2 * PAD_REM;
  const indices = Array.from({ length: Math.max(0, last - first) }, (_, step) => first + step);
  return (
    <div
      ref={scroller}
      class="grid"
      role="grid"
      tabIndex={0}
      aria-label={`${props.label}, ${grouped(total)} rows`}
      aria-rowcount={total + 1}
      aria-activedescendant={total > 0 ? `row-${chosen}` : undefined}
      style={{ maxHeight: `${height}px`, "--columns": widths, "--least": `${least}rem` }}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      onKeyDown={onKey}
    >
      <div class="grid-row head" role="row" aria-rowindex={1}>
        {columns.map((column) => (
          <Head key={column.key} column={column} props={props} />
        ))}
      </div>
      <div class="grid-body" role="rowgroup" style={{ height: `${tall}px` }}>
        <div style={{ transform: `translateY(${shift}px)` }} role="presentation">
          {indices.map((index) => {
            const row = props.row(index);
            return (
              <div
                key={index}
                id={`row-${index}`}
                class={index === chosen ? "grid-row chosen" : "grid-row"}
                role="row"
                aria-rowindex={index + 2}
                aria-selected={index === chosen}
                onClick={() => {
                  setChosen(index);
                  if (row !== undefined) open(index, row);
                }}
              >
                {columns.map((column) => (
                  <div key={column.key} role="gridcell" class={column.number ? "number" : ""}>
                    {row === undefined ? <span class="quiet">…</span> : column.cell(row)}
                  </div>
                ))}
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}

function Head<Row>({ column, props }: { column: Column<Row>; props: Props<Row> }) {
  const sorted = props.sort === column.key;
  const order = sorted ? (props.order === "desc" ? "descending" : "ascending") : undefined;
  return (
    <div role="columnheader" class={column.number ? "number" : ""} aria-sort={order}>
      {column.sorts && props.onSort ? (
        <button type="button" class="plain" onClick={() => props.onSort?.(column.key)}>
          {column.name}
          <span aria-hidden="true">{sorted ? (props.order === "desc" ? " ▾" : " ▴") : ""}</span>
        </button>
      ) : (
        column.name
      )}
    </div>
  );
}
