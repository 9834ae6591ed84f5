// Numbers as a page carries them: three bytes each, lowest first, four characters of base64
// (report/tokens/encoding.py: pack).
const numbers = (() => {
  function whole(packed) {
    const bytes = atob(packed);
    const words = new Uint32Array(bytes.length / 3);
    for (let i = 0, at = 0; i < words.length; i++, at += 3) {
      words[i] = bytes.charCodeAt(at) | (bytes.charCodeAt(at + 1) << 8)
        | (bytes.charCodeAt(at + 2) << 16);
    }
    return words;
  }

  // The upper three bytes of a float32.
  function floats(packed) {
    return new Float32Array(whole(packed).map((word) => word << 8).buffer);
  }

  return { whole, floats };
})();
