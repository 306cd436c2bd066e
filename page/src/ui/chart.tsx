// Series over time, stacked, with events on the axis; a part can be chosen with mouse or keys.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { time } from "../format";
import { useLatest } from "../hooks";
import { useDark } from "../theme";

export interface Line {
  name: string;
  colour: string;
  values: (number | null)[];
  /** Drawn on top of the stack, not in it. */
  over?: boolean;
}

export interface Mark {
  /** Seconds since 1970. */
  at: number;
  text: string;
}

interface Props {
  label: string;
  /** Seconds since 1970. */
  t: number[];
  lines: Line[];
  format: (value: number) => string;
  height?: number;
  marks?: Mark[];
  /** Both ends of the axis; by default those of the data. */
  range?: [number, number];
  brush?: (from: number, to: number) => void;
  /** Bars, each as wide as a step, rather than areas. */
  bars?: boolean;
}

/** Values summed up from the first series on; the overlaid ones as they are. */
function stacked(lines: Line[], length: number): (number | null)[][] {
  const sums = new Array<number>(length).fill(0);
  return lines.map((line) => {
    if (line.over) return line.values;
    return line.values.map((value, at) => {
      if (value === null) return null;
      const sum = (sums[at] ?? 0) + value;
      sums[at] = sum;
      return sum;
    });
  });
}

/** Of axes, lines and marks: a canvas does not know the style sheet's colours. */
const INK = {
  light: { text: "#545f6b", line: "#d8dee4", mark: "#8a3ffc" },
  dark: { text: "#a3b0bc", line: "#2d3843", mark: "#c6a0ff" },
};

export function Chart(props: Props) {
  const { t, lines, marks = [], height = 220 } = props;
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const dark = useDark();
  const brush = useLatest((from: number, to: number) => props.brush?.(from, to));
  const format = useLatest(props.format);
  const drawn = useLatest(() => marks);
  const ends = useLatest(() => props.range ?? null);
  const shape = lines.map((line) => `${line.name}|${line.colour}|${line.over ? 1 : 0}`).join("\n");
  // What is summed up last lies behind, so it is drawn first.
  const order = useMemo(() => [...lines.keys()].sort((a, b) => rank(lines, a) - rank(lines, b)), [shape]);
  const data = (): uPlot.AlignedData => {
    const sums = stacked(lines, t.length);
    return [t, ...order.map((index) => sums[index] ?? [])];
  };

  useEffect(() => {
    const holder = place.current;
    if (!holder) return;
    const ink = dark ? INK.dark : INK.light;
    const series: uPlot.Series[] = order.map((index) => {
      const line = lines[index] as Line;
      const shared: uPlot.Series = { label: line.name, stroke: line.colour, points: { show: false } };
      if (line.over) return { ...shared, width: 2 };
      const paths = props.bars
        ? uPlot.paths.bars?.({ size: [1, Infinity], align: 1 })
        : uPlot.paths.stepped?.({ align: 1 });
      return { ...shared, width: props.bars ? 0 : 1, fill: line.colour, ...(paths ? { paths } : {}) };
    });
    const axis = { stroke: ink.text, grid: { stroke: ink.line, width: 1 }, ticks: { show: false } };
    const made = new uPlot(
      {
        width: Math.max(holder.clientWidth, 100),
        height,
        legend: { show: false },
        cursor: {
          points: { show: false },
          drag: { x: !!props.brush, y: false, setScale: false },
        },
        scales: {
          x: { time: true, range: (_, min, max) => ends() ?? [min, max] },
          y: { range: (_, __, max) => [0, max > 0 ? max * 1.05 : 1] },
        },
        axes: [
          { ...axis, space: (_, __, min, max, wide) => apart(max - min, wide), size: 28, values: (_, splits, __, ___, step) => splits.map((v) => clock(v, step)) },
          { ...axis, size: 74, values: (_, splits) => splits.map((value) => format(value)) },
        ],
        series: [{}, ...series],
        hooks: {
          setCursor: [(plot) => setAt(plot.cursor.idx ?? null)],
          setSelect: [
            (plot) => {
              const { left, width } = plot.select;
              if (width < 3) return;
              brush(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
              plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
          draw: [(plot) => drawMarks(plot, drawn(), ink.mark)],
        },
      },
      data(),
      holder,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => {
      made.setSize({ width: Math.max(holder.clientWidth, 100), height });
    });
    watch.observe(holder);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, dark, height, !!props.brush, !!props.bars]);

  useEffect(() => {
    plot.current?.setData(data());
  }, [t, lines, marks.length, props.range?.[0], props.range?.[1]]);

  const shown = at !== null && at < t.length ? at : t.length - 1;
  const moment = t[shown];
  // The last bar is what happens now only where there is a now.
  const rests = !!props.bars && at === null;
  return (
    <figure class="chart">
      <div ref={place} class="plot" role="img" aria-label={rests ? props.label : `${props.label}: ${inWords(props, shown)}`} />
      <figcaption>
        <ul class="legend">
          {lines.map((line) => (
            <li key={line.name}>
              <Swatch colour={line.colour} line={!!line.over} />
              {line.name} {!rests && <b>{text(line.values[shown], props.format)}</b>}
            </li>
          ))}
          {moment !== undefined && !rests && <li class="quiet">at {clock(moment, Math.min((t[1] ?? Infinity) - (t[0] ?? 0), 1))}</li>}
        </ul>
      </figcaption>
    </figure>
  );
}

function rank(lines: Line[], index: number): number {
  return lines[index]?.over ? lines.length + index : -index;
}

function text(value: number | null | undefined, format: (value: number) => string): string {
  return value === null || value === undefined ? "–" : format(value);
}

function inWords(props: Props, at: number): string {
  const named = props.lines.map((line) => `${line.name} ${text(line.values[at], props.format)}`);
  return named.length > 0 ? named.join(", ") : "nothing";
}

/** Pixels from tick to tick: a label with a second's fraction is longer. */
function apart(seconds: number, wide: number): number {
  return seconds / (wide / TICK_PX) < 1 ? TICK_FRACTION_PX : TICK_PX;
}

const TICK_PX = 66;
const TICK_FRACTION_PX = 100;

/** A time on the axis: always from the hour on, so that no part is taken for another. */
export function clock(seconds: number, step: number): string {
  const ns = BigInt(Math.round(seconds * 1000)) * 1_000_000n;
  if (step < 1) return time(ns, step < 0.01 ? 3 : step < 0.1 ? 2 : 1);
  if (step < 60) return time(ns, 0);
  const date = new Date(seconds * 1000);
  if (step >= 86_400) return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  return time(ns, 0).slice(0, 5);
}

function drawMarks(plot: uPlot, marks: Mark[], colour: string): void {
  const { ctx, bbox } = plot;
  const min = plot.scales["x"]?.min ?? 0;
  const max = plot.scales["x"]?.max ?? 0;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.fillStyle = colour;
  ctx.lineWidth = devicePixelRatio;
  for (const mark of marks) {
    if (mark.at < min || mark.at > max) continue;
    const x = Math.round(plot.valToPos(mark.at, "x", true));
    ctx.beginPath();
    ctx.setLineDash([4, 3]);
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(x - 5, bbox.top);
    ctx.lineTo(x + 5, bbox.top);
    ctx.lineTo(x, bbox.top + 8);
    ctx.fill();
  }
  ctx.restore();
}

export function Swatch(props: { colour: string; line?: boolean }) {
  return <i class={props.line ? "swatch line" : "swatch"} style={{ background: props.colour }} aria-hidden="true" />;
}
