// Words, numbers and elements for people. Labels, metrics, prompts and completions come from files,
// hostile until proven otherwise: they reach the page as text nodes only.
const text = (() => {
  // Controls as the signs that stand for them; what would reorder or hide text by its number.
  function visible(words) {
    return words.replace(/(?![\t\n])[\p{Cc}\p{Cs}\p{Bidi_Control}\u2028\u2029\ufeff]/gu, (c) => {
      const code = c.codePointAt(0);
      if (code < 32) return String.fromCharCode(0x2400 + code);
      return code === 127 ? "\u2421" : "[U+" + code.toString(16).toUpperCase().padStart(4, "0") + "]";
    });
  }

  function plain(x) {
    if (x === undefined || Number.isNaN(x)) return "—";
    if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
    const size = Math.abs(x);
    const digits = x === 0 ? "0" : size < 1e-3 || size >= 1e5 ? x.toExponential(2)
      : size < 0.1 ? x.toPrecision(3) : x.toFixed(3);
    return digits.replaceAll("-", "−");
  }

  function signed(x) {
    return x > 0 ? "+" + plain(x) : plain(x);
  }

  // Significant digits, as short as they can be.
  function round(x, digits = 3) {
    return Number.isNaN(x) ? "—" : String(Number(x.toPrecision(digits))).replaceAll("-", "−");
  }

  function count(n, word) {
    return n + " " + word + (n === 1 ? "" : "s");
  }

  function element(tag, className, words, attributes = {}) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (words !== undefined) made.textContent = words;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  return { visible, plain, signed, round, count, element };
})();
