// Why a packet was kept, in words, with its own values beside each condition.
import type { Why, WhySign, WhyTree } from "../api/client";
import { percent } from "../format";
import { Notice } from "./bits";

export function WhyWords({ of: why }: { of: Why }) {
  return (
    <div class="why">
      <p class="lead">{why.words}</p>
      {why.unsure && <Notice kind="warn">{why.unsure}</Notice>}
      <Signs signs={why.signs} />
      {why.trees.length > 0 && (
        <details>
          <summary>Conditions of the trees</summary>
          <Trees
            trees={why.trees}
            more={why.more_trees}
            from={
              why.values_from === "flow"
                ? "values of the flow's packets in the log up to this one"
                : why.values_from === "packet"
                  ? "values of this packet"
                  : null
            }
          />
        </details>
      )}
      <p class="quiet">
        In exports: <code>{why.reason}</code>
        {why.mode && <>, mode {why.mode}</>}
      </p>
    </div>
  );
}

/** What speaks for the class, in words of traffic, the strongest first. */
export function Signs({ signs }: { signs: WhySign[] }) {
  if (signs.length === 0) return null;
  return (
    <ul class="signs">
      {signs.map((sign, index) => (
        <li key={index}>
          {sign.words}
          {sign.value_text && <>; here {sign.value_text}</>} {sign.ordinary && <small>{sign.ordinary}</small>}
        </li>
      ))}
    </ul>
  );
}

export function Trees(props: { trees: WhyTree[]; more: number; from: string | null }) {
  return (
    <>
      {props.trees.map((tree) => (
        <table key={tree.tree} class="conditions">
          <caption>
            Tree {tree.tree}, {percent(tree.share)} sure
          </caption>
          <thead>
            <tr>
              <th scope="col">Condition</th>
              <th scope="col" class="number">
                Here
              </th>
              <th scope="col">Meaning</th>
            </tr>
          </thead>
          <tbody>
            {tree.conditions.map((condition, index) => (
              <tr key={index}>
                <td>
                  <code>{condition.words}</code>
                </td>
                <td class="number">
                  {condition.value_text || "–"}{" "}
                  {condition.holds === true && <span title="holds">✓</span>}
                  {condition.holds === false && (
                    <span class="warn" title="The log does not have all packets that the recording saw">
                      ?
                    </span>
                  )}
                </td>
                <td>{condition.what}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ))}
      <p class="quiet">
        {props.more > 0 && <>and {props.more} less certain trees. </>}
        {props.from && <>Here: {props.from}; ? where the log does not have all packets that the recording saw.</>}
      </p>
    </>
  );
}
