"""Signals that end a command: raised where the command is, and never as another exception."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from executor.signals import SignalError, raised_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_model_is_built_is_raised_afterwards(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    compile_pattern, built = re.compile, []

    def interrupted(*arguments: Any, **options: Any) -> re.Pattern[str]:
        os.kill(os.getpid(), number)
        return compile_pattern(*arguments, **options)

    def build() -> None:
        with raised_signals():
            monkeypatch.setattr(re, "compile", interrupted)

            class Model(BaseModel):
                model_config = ConfigDict(regex_engine="python-re")
                name: Annotated[str, Field(pattern="^a+$")]

            monkeypatch.setattr(re, "compile", compile_pattern)
            built.append(Model(name="aa").name)
            time.sleep(30)

    with pytest.raises(SignalError) as raised:
        build()

    assert built == ["aa"]
    assert raised.value.exit_code == 128 + number
