// What a reader chose, in the address: `#curves&metric=entropy/exact&log=...`. The part before the
// first "&" is the section that a link of the page leads to; all else is ours. Only choices that
// differ from how the page opens are written.
const state = (() => {
  const WAIT = 150;  // ms: a browser counts changes of the address, and a slider makes many
  let anchor = "";
  let chosen = new URLSearchParams();
  let timer = null;

  // Whether the address holds choices; one that is a link's alone leaves the choices as they are.
  function read() {
    const [first, ...rest] = location.hash.slice(1).split("&");
    const named = first !== "" && !first.includes("=");
    anchor = named ? first : "";
    const choices = named ? rest : [first, ...rest];
    if (!choices.some((part) => part.includes("="))) return false;
    chosen = new URLSearchParams(choices.join("&"));
    return true;
  }

  function write() {
    timer = null;
    const words = chosen.toString().replaceAll("%2F", "/");
    const hash = [anchor, words].filter((part) => part !== "").join("&");
    if (hash === location.hash.slice(1)) return;
    history.replaceState(history.state, "", hash === "" ? location.pathname + location.search : "#" + hash);
  }

  // Choices by name: a text, a list of texts, or null for none.
  function set(choices) {
    for (const [name, value] of Object.entries(choices)) {
      chosen.delete(name);
      for (const each of value === null ? [] : [value].flat()) chosen.append(name, each);
    }
    timer ??= setTimeout(write, WAIT);
  }

  // The section that the address names, where a browser did not find it for the choices behind it.
  function section() {
    return location.hash.includes("&") && anchor !== "" ? document.getElementById(anchor) : null;
  }

  return { read, one: (name) => chosen.get(name), all: (name) => chosen.getAll(name), set, section };
})();
