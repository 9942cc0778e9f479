"""Which class of service a call is of."""

import pytest

from kairos.core import SERVICE_CLASSES, InvalidRequest, ServiceClass
from kairos.gateway import ServiceClasses
from kairos.gateway.auth.access import Caller, ClassNotAllowed

ANYBODY = Caller("default")
HELD = Caller("acme", None, "standard", ("standard", "batch"))


def class_of(caller, name=None):
    return ServiceClasses().of({} if name is None else {b"x-kairos-class": name}, caller)


def test_a_call_that_names_none_has_that_of_its_key():
    assert class_of(ANYBODY) == "standard"
    assert class_of(Caller("acme", None, "batch", ("batch",))) == "batch"


def test_one_may_be_named_within_what_the_key_may_ask_for():
    assert class_of(ANYBODY, b"interactive") == "interactive"
    assert class_of(HELD, b"batch") == "batch"
    with pytest.raises(
        ClassNotAllowed, match="may not use class 'interactive', only: standard, ba"
    ):
        class_of(HELD, b"interactive")


@pytest.mark.parametrize("name", [b"", b"Interactive", b"urgent", b"\xff", b"a" * 10_000])
def test_another_is_an_error_that_says_which_there_are(name):
    with pytest.raises(InvalidRequest) as raised:
        class_of(ANYBODY, name)
    said = "header x-kairos-class names no class of service: interactive, standard, batch"
    assert str(raised.value) == said


def test_a_class_may_have_a_deadline_for_calls_that_name_none():
    classes = ServiceClasses(dict(SERVICE_CLASSES) | {"urgent": ServiceClass(deadline_us=5)})
    assert classes.deadline("urgent", None, 100) == 105
    assert classes.deadline("urgent", 101, 100) == 101
    assert classes.deadline("urgent", 200, 100) == 200
    assert classes.deadline("standard", None, 100) is None


def test_what_goes_as_spare_is_the_first_such_class_that_the_key_may_ask_for():
    others = {"batch": ServiceClass(), "night": ServiceClass(goes="spare")}

    assert ServiceClasses().spare(ANYBODY) == "batch"
    assert ServiceClasses().spare(HELD) == "batch"
    assert ServiceClasses().spare(Caller("acme", service_classes=("standard",))) is None
    assert ServiceClasses(dict(SERVICE_CLASSES) | others).spare(ANYBODY) == "night"
    assert ServiceClasses(dict(SERVICE_CLASSES) | others).spare(HELD) is None
