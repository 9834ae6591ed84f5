// A token's figures: shown where the pointer or the focus is; and the keys that move between tokens.
const tokensTip = (() => {
  const { element, visible, plain, signed } = text;
  const OBSERVED = "Said by the environment: read by the policy, not trained on.";
  const FIGURES = [
    ["probability", (t) => plain(Math.exp(t.logp))],
    ["log-prob", (t) => plain(t.logp)],
    ["sampler’s log-prob", (t) => plain(t.sampler_logp)],
    ["entropy", (t) => plain(t.entropy)],
    ["change of entropy", (t) => signed(t.change)],
    ["influence", (t) => signed(t.influence)],
    ["advantage", (t) => signed(t.advantage)],
  ];

  // The next token (1) or the one before (-1) in a completion; whose turn it is is no token.
  function beside(span, step) {
    let other = span;
    do {
      other = step > 0 ? other.nextElementSibling : other.previousElementSibling;
    } while (other !== null && !other.classList.contains("tok"));
    return other;
  }

  // The token nearest above (-1) or below (1) on the next line of text.
  function vertical(span, step) {
    const from = span.getClientRects()[0];
    let best = null;
    let line = null;
    for (let other = beside(span, step); other !== null; other = beside(other, step)) {
      const rect = other.getClientRects()[0];
      if (Math.abs(rect.top - from.top) < from.height / 2) continue;
      if (line !== null && Math.abs(rect.top - line) >= from.height / 2) break;
      line = rect.top;
      const distance = Math.abs(rect.left - from.left);
      if (best === null || distance < best.distance) best = { other, distance };
    }
    return best?.other ?? null;
  }

  const MOVES = {
    ArrowRight: (span) => beside(span, 1),
    ArrowLeft: (span) => beside(span, -1),
    ArrowDown: (span) => vertical(span, 1),
    ArrowUp: (span) => vertical(span, -1),
    Home: (span) => span.parentElement.querySelector(".tok"),
    End: (span) => span.parentElement.lastElementChild,
  };

  // list: the rollouts; tip: where the figures go; rolloutOf: the rollout that a token is of.
  function mount(list, tip, rolloutOf, signal) {
    let hovered = null;  // the token under the pointer
    let focused = null;  // the token that has the focus
    const tokenOf = (event) => event.target.closest?.(".tok") ?? null;
    const listen = (target, event, does, how = {}) => target.addEventListener(event, does, { signal, ...how });

    function explain() {
      const span = hovered ?? focused;
      tip.hidden = span === null;
      if (span === null) return;
      const at = Number(span.dataset.at);
      const rollout = rolloutOf(span);
      const { of } = rollout;
      const token = of.tokens[at];
      const observed = tokensRows.seen(of, at);
      const figures = {};
      for (const [name, values] of Object.entries(of.values)) figures[name] = values[at];
      const words = visible(of.pieces[token]).replaceAll("\n", "↵").replaceAll(" ", "␣");
      const place = element("p", "soft", "token " + (Number(span.dataset.i) + 1) + " of "
        + rollout.length + ", id " + of.ids[token]);
      const table = element("dl");
      for (const [name, format] of observed ? [] : FIGURES) {
        const pair = element("div");
        pair.append(element("dt", "", name), element("dd", "", format(figures)));
        table.append(pair);
      }
      tip.replaceChildren(element("p", "tv-token", words), place, observed ? element("p", "soft", OBSERVED) : table);
      put(span);
    }

    // Below the token, or above where there is no room.
    function put(span) {
      const around = span.getClientRects()[0];
      const own = tip.getBoundingClientRect();
      const below = around.bottom + 6;
      const fits = below + own.height <= window.innerHeight;
      const left = Math.min(around.left, document.documentElement.clientWidth - own.width - 8);
      tip.style.left = Math.max(8, left) + "px";
      tip.style.top = Math.max(4, fits ? below : around.top - own.height - 6) + "px";
    }

    listen(list, "keydown", (event) => {
      const span = tokenOf(event);
      if (span === null || event.ctrlKey || event.altKey || event.metaKey) return;
      if (!Object.hasOwn(MOVES, event.key)) return;
      event.preventDefault();
      MOVES[event.key](span)?.focus();
    });
    listen(list, "focusin", (event) => {
      focused = tokenOf(event);
      if (focused !== null) {
        for (const other of focused.parentElement.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
        focused.tabIndex = 0;
        focused.setAttribute("aria-selected", "true");
        focused.setAttribute("aria-describedby", tip.id);
        hovered = null;
      }
      explain();
    });
    listen(list, "focusout", (event) => {
      const span = tokenOf(event);
      span?.setAttribute("aria-selected", "false");
      span?.removeAttribute("aria-describedby");
      focused = null;
      explain();
    });
    listen(list, "pointerover", (event) => {
      const span = tokenOf(event);
      if (span === hovered) return;
      hovered = span;
      explain();
    });
    listen(list, "pointerleave", () => {
      hovered = null;
      explain();
    });
    listen(document, "keydown", (event) => {
      if (event.key !== "Escape") return;
      hovered = null;
      tip.hidden = true;
    });
    // capture: completions scroll as well, and a scroll does not bubble
    listen(document, "scroll", () => {
      const span = hovered ?? focused;
      if (span !== null && !tip.hidden) put(span);
    }, { capture: true, passive: true });

    // for a list that is drawn anew
    function forget() {
      hovered = focused = null;
      explain();
    }

    return { forget };
  }

  return { mount };
})();
