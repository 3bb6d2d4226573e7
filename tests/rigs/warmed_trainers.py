"""Imported by the interpreter from which the scripts of examples/integrations are forked: it takes eight seconds."""

import accelerate
import lightning.pytorch
import peft
import transformers

assert accelerate and lightning.pytorch and peft and transformers.Trainer
