// A class has a hue, a granularity a lightness: the same everywhere.

const NAMED: Record<string, number> = { benign: 210, anomalous: 14, attack: 14, unclassified: 48 };
const OTHERS = [286, 150, 330, 95, 178, 250, 24, 120];

const LIGHTNESS: Record<string, [light: number, dark: number]> = {
  full: [44, 62],
  partial: [56, 50],
  header: [72, 38],
  sampled_out: [84, 28],
  drop: [88, 24],
};

/** Names seen so far keep their hue while the page is open. */
const seen: string[] = [];

function hue(name: string): number {
  const known = NAMED[name];
  if (known !== undefined) return known;
  let place = seen.indexOf(name);
  if (place < 0) place = seen.push(name) - 1;
  return OTHERS[place % OTHERS.length] ?? 0;
}

export function colour(name: string, granularity: string, dark: boolean): string {
  const [inLight, inDark] = LIGHTNESS[granularity] ?? [60, 45];
  return `hsl(${hue(name)} ${dark ? 55 : 62}% ${dark ? inDark : inLight}%)`;
}

/** Attacks at the bottom of a stack, where their shape can be read; then whole before headers. */
export function compare(a: { class: string; granularity: string }, b: typeof a): number {
  const rank = (name: string) => (name === "benign" ? 2 : name === "unclassified" ? 1 : 0);
  const order = Object.keys(LIGHTNESS);
  return (
    rank(a.class) - rank(b.class) ||
    a.class.localeCompare(b.class) ||
    order.indexOf(a.granularity) - order.indexOf(b.granularity)
  );
}

/** How a packet is kept, in a sentence. */
export function keptAs(granularity: string): string {
  return granularity === "header" ? "as headers" : kept(granularity);
}

/** `header` as one says it. */
export function kept(granularity: string): string {
  const words: Record<string, string> = {
    full: "whole",
    header: "headers",
    partial: "in part",
    drop: "not kept",
    sampled_out: "sampled out",
  };
  return words[granularity] ?? granularity;
}
