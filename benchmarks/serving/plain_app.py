"""The plainest apps for a model: FastAPI with ``def`` and ``async def``, and a Starlette route.

``PACKAGE`` names the package.
"""

from __future__ import annotations

import os

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import modpack

model = modpack.load(os.environ["PACKAGE"])
threaded = FastAPI()
direct = FastAPI()


class Item(BaseModel):
    x: list[list[float]]


@threaded.post("/predict")
def predict_in_thread(item: Item):
    with torch.inference_mode():
        return {"output": model(torch.tensor(item.x)).tolist()}


@direct.post("/predict")
async def predict(item: Item):
    with torch.inference_mode():
        return {"output": model(torch.tensor(item.x)).tolist()}


async def predict_unchecked(request: Request) -> JSONResponse:
    item = await request.json()
    with torch.inference_mode():
        return JSONResponse({"output": model(torch.tensor(item["x"])).tolist()})


bare = Starlette(routes=[Route("/predict", predict_unchecked, methods=["POST"])])
