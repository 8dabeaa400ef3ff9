"""The options of a request for vectors, as the bodies of several protocols have them."""

from typing import Literal, get_args

from pydantic import BaseModel, Field

from service.embedding.requests import DIRECTIONS, EmbedOptions
from service.embedding.tokenize.prompts import SPELLINGS

INPUT_TYPES = Literal["query", "document", "passage", "search_query", "search_document", "classification", "clustering"]
POOLING_NAMES = Literal["cls", "mean", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean", "last-token"]
SIDES = Literal["Right", "right", "Left", "left"]
POOLING_SPELLINGS = {"last-token": "lasttoken"}  # text-embeddings-inference's name
INSTRUCTION_ABOUT = "a text: what the inputs are queries for, of models with prompts that hold an instruction"
INPUT_TYPE_ABOUT = (
    "what the texts are for: query or document (or passage, search_query, search_document), classification or "
    "clustering; brings the model's prompt for it, if it has one, unless prompt_name or task is sent"
)
SAME = ("truncate", "normalize", "dimensions", "prompt_name", "task", "max_active_dims", "instruction")
"""Fields that are options of the core by the same names and values."""


class CutFields(BaseModel, strict=True):
    """The fields that say how inputs that are too long are cut."""

    truncate: bool | None = Field(None, description="true cuts inputs that are too long, false refuses them")
    truncation_direction: SIDES | None = Field(
        None, description="Right keeps the beginning, Left the end; left out: as the model's files say, mostly Right"
    )


class OptionFields(CutFields):
    """The fields of a body or of parameters that say how inputs are read and what is computed of them."""

    normalize: bool | None = Field(None, description="true scales pooled vectors to unit length, false does not")
    dimensions: int | None = Field(None, gt=0, description="an integer from 1: leading values kept, then normalised")
    pooling: POOLING_NAMES | None = Field(None, description=f"one of {', '.join(get_args(POOLING_NAMES))}")
    prompt_name: str | None = Field(None, description="the name of one of the model's prompts")
    task: str | None = Field(None, description="one of the model's tasks, whose adapters and prompt are used")
    max_active_dims: int | None = Field(
        None, gt=0, description="an integer from 1: the largest values kept of a sparse vector"
    )
    instruction: str | None = Field(None, description=INSTRUCTION_ABOUT)
    input_type: INPUT_TYPES | None = Field(None, description=INPUT_TYPE_ABOUT)

    def options(self, outputs: tuple[str, ...], dtype: str) -> EmbedOptions:
        """Return the options of the core's request."""
        return EmbedOptions(
            outputs=outputs,
            truncation_direction=DIRECTIONS[self.truncation_direction],
            pooling=POOLING_SPELLINGS.get(self.pooling, self.pooling) if self.pooling else None,
            dtype=dtype,
            input_type=SPELLINGS[self.input_type] if self.input_type else None,
            **{name: getattr(self, name) for name in SAME},
        )
