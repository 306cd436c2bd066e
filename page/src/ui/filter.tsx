// A filter in tcpdump's language: words are offered as it is typed, errors are shown at their place.
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { call, type Schemas } from "../api/client";
import { useSettled } from "../hooks";

interface Props {
  label: string;
  value: string;
  /** While it is typed. */
  change: (value: string) => void;
  /** Enter, without a word chosen from the list. */
  done?: () => void;
  /** An error that somebody else found. */
  problem?: Schemas["Error"] | null;
  /** Checked by the policy's check instead. */
  unchecked?: boolean;
  placeholder?: string;
}

/** From the last key to the question. */
const SETTLED_MS = 180;

export function FilterInput(props: Props) {
  const id = useId();
  const input = useRef<HTMLInputElement>(null);
  const [found, setFound] = useState<Schemas["Error"] | null>(null);
  const [offers, setOffers] = useState<Schemas["Completions"] | null>(null);
  const [chosen, setChosen] = useState(-1);
  const [open, setOpen] = useState(false);
  const settled = useSettled(props.value, SETTLED_MS);

  useEffect(() => {
    if (props.unchecked) return;
    if (settled.trim() === "") {
      setFound(null);
      return;
    }
    const control = new AbortController();
    call("checkFilter", { query: { filter: settled }, signal: control.signal }).then(
      (check) => setFound(check.error),
      () => undefined,
    );
    return () => control.abort();
  }, [settled, props.unchecked]);

  useEffect(() => {
    if (!open) return;
    const control = new AbortController();
    const at = input.current?.selectionStart ?? settled.length;
    call("completeFilter", { query: { filter: settled, at }, signal: control.signal }).then(
      (offered) => {
        setOffers(offered);
        setChosen(-1);
      },
      () => undefined,
    );
    return () => control.abort();
  }, [settled, open]);

  const items = open ? (offers?.items ?? []).slice(0, 12) : [];
  const take = (text: string) => {
    if (!offers) return;
    const before = props.value.slice(0, offers.start);
    const after = props.value.slice(offers.end).trimStart();
    props.change(`${before}${text} ${after}`);
    setOffers(null);
    requestAnimationFrame(() => {
      const place = before.length + text.length + 1;
      input.current?.focus();
      input.current?.setSelectionRange(place, place);
    });
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" && items.length > 0) {
      event.preventDefault();
      setChosen((chosen + 1) % items.length);
    } else if (event.key === "ArrowUp" && items.length > 0) {
      event.preventDefault();
      setChosen(chosen <= 0 ? items.length - 1 : chosen - 1);
    } else if (event.key === "Escape" && open) {
      event.preventDefault();
      setOpen(false);
    } else if (event.key === "Enter" || (event.key === "Tab" && chosen >= 0)) {
      const item = items[chosen];
      if (item) {
        event.preventDefault();
        take(item.text);
      } else if (event.key === "Enter") {
        setOpen(false);
        props.done?.();
      }
    }
  };
  // Of an older text, the place would be another.
  const problem = props.problem ?? (settled === props.value ? found : null);
  return (
    <div class="filter">
      <label for={id}>{props.label}</label>
      <input
        ref={input}
        id={id}
        type="text"
        role="combobox"
        autocomplete="off"
        autocapitalize="off"
        spellcheck={false}
        maxLength={4096}
        placeholder={props.placeholder ?? ""}
        value={props.value}
        aria-expanded={items.length > 0}
        aria-controls={`${id}-list`}
        aria-autocomplete="list"
        aria-activedescendant={chosen >= 0 ? `${id}-${chosen}` : undefined}
        aria-invalid={problem !== null}
        aria-describedby={`${id}-problem`}
        onInput={(event) => {
          setOpen(true);
          props.change(event.currentTarget.value);
        }}
        onKeyDown={onKey}
        onBlur={() => setOpen(false)}
      />
      {items.length > 0 && (
        <ul id={`${id}-list`} role="listbox" aria-label="Suggestions">
          {items.map((item, index) => (
            <li
              key={item.text}
              id={`${id}-${index}`}
              role="option"
              aria-selected={index === chosen}
              onMouseDown={(event) => {
                event.preventDefault();
                take(item.text);
              }}
            >
              <b>{item.text}</b> <span>{item.what}</span>
            </li>
          ))}
        </ul>
      )}
      <p id={`${id}-problem`} class="problem" role="status">
        {problem && <Place text={props.value} problem={problem} />}
      </p>
    </div>
  );
}

/** The text with the part that is wrong marked, and what is wrong with it. */
function Place(props: { text: string; problem: Schemas["Error"] }) {
  const { start, end, error } = props.problem;
  if (start == null || start > props.text.length) return <>{error}</>;
  const until = Math.max(end ?? start + 1, start + 1);
  const wrong = props.text.slice(start, until);
  return (
    <>
      <code>
        {props.text.slice(0, start)}
        <mark>{wrong === "" ? "␣" : wrong}</mark>
        {props.text.slice(until)}
      </code>{" "}
      {error}
    </>
  );
}
