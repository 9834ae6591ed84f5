// Pictures of what the live charts show as well: folded where these can be drawn.
const pictures = (() => {
  function mount(root, signal) {
    const box = root.querySelector("#pictures");
    if (box === null) return;
    box.open = state.one("pictures") === "1";
    box.addEventListener("toggle", () => state.set({ pictures: box.open ? "1" : null }), { signal });
  }

  return { mount };
})();
