// Bytes as hexadecimal and text, sixteen in a row; a field of the dissection is marked.
interface Props {
  hex: string;
  chosen: { start: number; length: number } | null;
  /** Number of the bytes that are headers. */
  headers: number;
}

const IN_ROW = 16;
/** Bytes shown: jumbo frames whole, and no more of what is larger. */
const MOST = 16_384;

export function Hex({ hex, chosen, headers }: Props) {
  const all = hex.match(/../g) ?? [];
  const bytes = all.slice(0, MOST);
  const rows = Array.from({ length: Math.ceil(bytes.length / IN_ROW) }, (_, row) => row * IN_ROW);
  const kind = (at: number) => {
    const inside = chosen !== null && at >= chosen.start && at < chosen.start + chosen.length;
    return `${inside ? "in " : ""}${at < headers ? "head" : "pay"}`;
  };
  if (bytes.length === 0) return <p>The log has no bytes of this packet.</p>;
  return (
    <>
      <pre class="hex" tabIndex={0} role="group" aria-label="Bytes in hexadecimal">
        {rows.map((row) => {
          const part = bytes.slice(row, row + IN_ROW);
          return (
            <div key={row}>
              <span class="quiet">{row.toString(16).padStart(4, "0")} </span>
              {runs(part, row, kind, (byte, at) => `${at % IN_ROW === 8 ? " " : ""}${byte} `)}
              <span>{" ".repeat((IN_ROW - part.length) * 3 + (part.length <= 8 ? 1 : 0))} </span>
              {runs(part, row, kind, printable)}
            </div>
          );
        })}
      </pre>
      {all.length > MOST && <p class="quiet">The first {MOST} bytes are shown.</p>}
      <p class="quiet">
        <span class="hex-key head">headers</span> <span class="hex-key pay">payload</span>
      </p>
    </>
  );
}

/** Neighbours of the same kind in one element. */
function runs(
  part: string[],
  row: number,
  kind: (at: number) => string,
  text: (byte: string, at: number) => string,
) {
  const made: { kind: string; text: string }[] = [];
  part.forEach((byte, step) => {
    const is = kind(row + step);
    const last = made.at(-1);
    if (last && last.kind === is) last.text += text(byte, row + step);
    else made.push({ kind: is, text: text(byte, row + step) });
  });
  return made.map((run, index) => (
    <span key={index} class={run.kind}>
      {run.text}
    </span>
  ));
}

function printable(byte: string): string {
  const code = parseInt(byte, 16);
  return code >= 0x20 && code < 0x7f ? String.fromCharCode(code) : ".";
}
