// Makes a page live. `entrostat.mount()` may be called again at any time, after its content was
// replaced say: it lets go of what was there, and what the reader chose is in the address.
const PARTS = [curves, tokens, pictures];
let mounted = null;

function mount(root = document.querySelector("main")) {
  mounted?.abort();
  mounted = new AbortController();
  for (const part of PARTS) part.mount(root, mounted.signal);
}

window.entrostat = Object.freeze({ mount });
window.addEventListener("hashchange", () => {
  if (state.read()) mount();
  else if (location.hash.length > 1) state.set({});  // a link of the page: the choices go behind it
});
state.read();
mount();
state.section()?.scrollIntoView();
