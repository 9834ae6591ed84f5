// Follows a run: asks whether there is a new page (/state), fetches it, and puts its sections in the place of
// those that differ. What a reader has set stays: where the page is scrolled to, what is unfolded, the focus.
// What a reader chose in the controls is in the address, from where window.entrostat.mount() takes it again.
"use strict";
(() => {
  const PAUSE = 1000;    // ms between two questions
  const DECODE = 2000;   // ms that images are waited for
  const main = document.querySelector("main");
  const $ = (name) => document.getElementById("live-" + name);
  const controls = "select, input, textarea";
  let shown = document.getElementById("live").dataset.version;
  let wanted = shown;
  let sent = new Map();         // key -> section as it came, before scripts changed it
  let told = null;              // the last message, and when
  let lost = "";                // in words, why there are no messages
  let asking = false;
  let timer = 0;                // of the next question
  let busy = false;
  let paused = false;

  const keyOf = (section) => section.getAttribute("aria-labelledby") || section.id || section.tagName;
  const byKey = (root) => new Map([...root.children].map((section) => [keyOf(section), section]));
  const policyOf = (page) => page.querySelector('meta[http-equiv="Content-Security-Policy"]')?.content;

  // What a reader has set, by names that the next page has too

  function nameOf(control) {
    return control.id || control.name + "=" + control.value;
  }

  function detailsOf(section) {
    const seen = new Map();
    return [...section.querySelectorAll("details")].map((details) => {
      const words = details.querySelector("summary")?.textContent ?? "";
      seen.set(words, (seen.get(words) ?? 0) + 1);
      return [words + "\n" + seen.get(words), details];
    });
  }

  const boxesOf = (section) => [...section.querySelectorAll(".scroll[aria-label]")]
    .map((box) => [box.getAttribute("aria-label"), box]);

  // Returns what unfolds and scrolls the section's next version as this one is.
  function settingsOf(section) {
    const open = new Map(detailsOf(section).map(([name, details]) => [name, details.open]));
    const places = new Map(boxesOf(section).map(([name, box]) => [name, [box.scrollLeft, box.scrollTop]]));
    return (next) => {
      for (const [name, details] of detailsOf(next)) details.open = open.get(name) ?? details.open;
      for (const [name, box] of boxesOf(next)) box.scrollTo(...places.get(name) ?? [0, 0]);
    };
  }

  function focusOf() {
    const was = document.activeElement;
    const control = was?.matches(controls) ? nameOf(was) : "";
    const { selectionStart, selectionEnd } = was ?? {};
    return () => {
      if (was?.isConnected) return;
      const again = [...main.querySelectorAll(controls)].find((one) => nameOf(one) === control)
        ?? (was?.id ? document.getElementById(was.id) : null);
      again?.focus({ preventScroll: true });
      if (selectionStart !== undefined && selectionStart !== null) {
        again?.setSelectionRange(selectionStart, selectionEnd);
      }
    };
  }

  // The section that a reader looks at stays where it is on the screen.
  function placeOf() {
    const at = [...main.children].find((section) => section.getBoundingClientRect().bottom > 0);
    if (at === undefined || window.scrollY === 0) return () => {};
    const [key, top] = [keyOf(at), at.getBoundingClientRect().top];
    return () => {
      const now = byKey(main).get(key);
      if (now !== undefined) window.scrollBy(0, now.getBoundingClientRect().top - top);
    };
  }

  // The new page

  async function swap(text) {
    const page = new DOMParser().parseFromString(text, "text/html");
    const version = page.getElementById("live")?.dataset.version;
    if (version === undefined) throw new Error("what came is no live page");
    if (policyOf(page) !== policyOf(document)) {  // other scripts than this page may run
      window.location.reload();
      return;
    }
    const next = byKey(page.querySelector("main"));
    const old = byKey(main);
    const kept = (key) => old.has(key) && sent.get(key)?.isEqualNode(next.get(key)) === true;
    const parts = [...next.keys()].map((key) => [
      key, kept(key) ? old.get(key) : document.importNode(next.get(key), true),
    ]);
    const fresh = parts.filter(([key, part]) => part !== old.get(key));
    // an image that is not decoded yet has no height: the page would jump
    const images = fresh.flatMap(([, part]) => [...part.querySelectorAll("img")]);
    await Promise.race([
      Promise.allSettled(images.map((image) => image.decode())),
      new Promise((done) => setTimeout(done, DECODE)),
    ]);

    const settings = new Map(fresh.filter(([key]) => old.has(key))
      .map(([key]) => [key, settingsOf(old.get(key))]));
    const [focus, place] = [focusOf(), placeOf()];
    const stay = new Set(parts.map(([, part]) => part));
    for (const section of [...main.children]) {
      if (!stay.has(section)) section.remove();
    }
    let at = main.firstElementChild;
    for (const [, part] of parts) {
      if (part === at) at = at.nextElementSibling;
      else main.insertBefore(part, at);
    }
    for (const [key, part] of fresh) settings.get(key)?.(part);
    window.entrostat.mount();
    focus();
    place();
    requestAnimationFrame(() => requestAnimationFrame(place));  // charts take their height by then
    document.title = page.title;
    sent = next;
    shown = version;
  }

  // Text that a reader has selected would be gone.
  const held = () => paused || !(window.getSelection()?.isCollapsed ?? true);

  async function update() {
    if (busy) return;
    busy = true;
    try {
      while (wanted !== shown && !held()) {
        const asked = wanted;
        const answer = await fetch("./", { cache: "no-store", credentials: "same-origin" });
        if (!answer.ok) throw new Error(await answer.text());
        await swap(await answer.text());
        if (wanted === asked) wanted = shown;  // a newer page may have come than was told of
      }
      lost = "";
    } catch (error) {
      lost = "The new page did not come: " + error.message;
    } finally {
      busy = false;
      say();
    }
  }

  // Words

  function span(seconds) {
    if (seconds < 90) return Math.round(seconds) + " s";
    if (seconds < 5400) return Math.round(seconds / 60) + " min";
    return seconds < 172800 ? Math.round(seconds / 3600) + " h" : Math.round(seconds / 86400) + " d";
  }

  function put(name, words) {
    if ($(name).textContent !== words) $(name).textContent = words;
  }

  function say() {
    if (told !== null) {
      const age = told.age === null ? "" : ", written "
        + span(told.age + (performance.now() - told.at) / 1000) + " ago";
      const behind = wanted === shown ? "" : paused ? "; a newer page waits"
        : held() ? "; a newer page waits while text is selected" : "";
      put("state", (paused ? "Paused at: " : "Live: ") + told.words + age + behind);
    }
    const wrong = told?.problem ? [told.waits ? told.problem : told.problem
      + (told.problem.startsWith("Left out") ? "" : " Shown is what was read before.")] : [];
    put("problem", [lost, ...wrong].filter(Boolean).join(" "));
  }

  // Messages

  // A page out of sight asks for nothing.
  async function ask() {
    clearTimeout(timer);
    if (document.hidden || asking) return;
    asking = true;
    try {
      const answer = await fetch("state", { cache: "no-store", credentials: "same-origin" });
      lost = answer.ok ? ""
        : "The server refuses this page: open the address that entrostat watch printed.";
      if (answer.ok) {
        told = { ...await answer.json(), at: performance.now() };
        wanted = told.version;
        update();
      }
    } catch {
      lost = "No connection to entrostat watch; trying again.";
    }
    asking = false;
    say();
    timer = setTimeout(ask, PAUSE);
  }

  $("pause").hidden = false;
  $("pause").addEventListener("click", () => {
    paused = !paused;
    $("pause").textContent = paused ? "Go on" : "Pause";
    say();
    update();
  });
  document.addEventListener("selectionchange", () => {
    if (wanted !== shown) update();
  });
  document.addEventListener("visibilitychange", ask);
  setInterval(say, 5000);
  ask();
})();
