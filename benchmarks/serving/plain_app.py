"""The plainest FastAPI app for a model. ``PACKAGE`` names the package."""

from __future__ import annotations

import os

import torch
from fastapi import FastAPI
from pydantic import BaseModel

import modpack

model = modpack.load(os.environ["PACKAGE"])
app = FastAPI()


class Item(BaseModel):
    x: list[list[float]]


@app.post("/predict")
def predict(item: Item):
    with torch.inference_mode():
        return {"output": model(torch.tensor(item.x)).tolist()}
