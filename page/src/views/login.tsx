import { useState } from "preact/hooks";
import { call } from "../api/client";
import { asRefused } from "../hooks";
import { Labelled, Problem } from "../ui/bits";

export function Login(props: { done: () => void }) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState<Error | null>(null);
  const login = async (event: Event) => {
    event.preventDefault();
    try {
      await call("login", { body: { token: token.trim() } });
      setToken("");
      props.done();
    } catch (error) {
      setProblem(asRefused(error));
    }
  };
  return (
    <main class="login">
      <form class="card" onSubmit={login}>
        <h1>Strata</h1>
        <Labelled label="Token" hint="In the file given with --token-file.">
          <input
            type="password"
            autocomplete="current-password"
            required
            value={token}
            onInput={(event) => setToken(event.currentTarget.value)}
          />
        </Labelled>
        <button type="submit" class="main">
          Log in
        </button>
        <Problem of={problem} />
      </form>
    </main>
  );
}
