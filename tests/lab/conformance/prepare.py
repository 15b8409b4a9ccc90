"""What the tests of others find in the lab's cloud: an image that boots, and tempest's settings.

Run by the project's own environment: `python -m tests.lab.conformance.prepare`.  What is there
already stays.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from string import Template
from typing import Any

from keystoneauth1 import adapter

from tests.lab.guest import MEMORY_MIB
from tests.lab.people import person
from tests.lab.settings import ENV, LAB_DIR
from tests.lab.world import boot_image

HERE = Path(__file__).parent
IMAGE = "lab"
#: The sizes that tests ask for; the second is the larger one.
FLAVORS = (f"c1.m{MEMORY_MIB}", f"c1.m{MEMORY_MIB + 32}")


def image() -> str:
    """The id of the public image that boots the lab's tiny Linux."""
    glance = adapter.Adapter(person("admin").session, endpoint_override=ENV["LAB_GLANCE_URL"])
    found = glance.get("/v2/images", params={"name": IMAGE}).json()["images"]
    if found:
        return str(found[0]["id"])
    wanted = {"disk_format": "raw", "container_format": "bare", "visibility": "public"}
    made = str(glance.post("/v2/images", json={"name": IMAGE, **wanted}).json()["id"])
    with tempfile.NamedTemporaryFile(dir=LAB_DIR / "run") as file:
        boot_image(Path(file.name), IMAGE)
        kind = {"Content-Type": "application/octet-stream"}
        glance.put(f"/v2/images/{made}/file", data=Path(file.name).read_bytes(), headers=kind)
    return made


def everywhere() -> None:
    """The administrator may make servers in the projects of tests, which are made for them."""
    keystone = adapter.Adapter(
        person("admin").session, endpoint_override=ENV["LEDGER_LAB_KEYSTONE"]
    )
    [role] = keystone.get("/roles", params={"name": "admin"}).json()["roles"]
    place = f"/OS-INHERIT/domains/default/users/{person('admin').user_id}/roles/{role['id']}"
    keystone.put(f"{place}/inherited_to_projects")


def server(image_id: str) -> None:
    """One of the member's, for openstacksdk's tests: flavors are sizes of the servers."""
    ledger = adapter.Adapter(person("member").session, endpoint_override=ENV["LAB_LEDGER_URL"])
    if ledger.get("/v2.1/servers", params={"name": "^lab-flavor$"}).json()["servers"]:
        return
    disk: dict[str, Any] = {"source_type": "image", "uuid": image_id, "destination_type": "volume"}
    disk |= {"volume_size": 1, "boot_index": 0, "delete_on_termination": True}
    wanted = {"name": "lab-flavor", "flavorRef": FLAVORS[0], "block_device_mapping_v2": [disk]}
    ledger.post("/v2.1/servers", json={"server": wanted})


def settings(image_id: str, flavors: tuple[str, ...], volume_type: str, *, passwords: bool) -> None:
    """tempest's, as a file.  `passwords`: servers have one."""
    flavor, larger = flavors
    known = {"IMAGE": image_id, "FLAVOR": flavor, "FLAVOR_ALT": larger}
    known |= {"TYPE": volume_type, "PASSWORDS": str(passwords)}
    text = Template((HERE / "tempest.conf").read_text()).substitute(ENV, **known)
    (LAB_DIR / "etc/tempest.conf").write_text(text)


def main() -> None:
    everywhere()
    image_id = image()
    server(image_id)
    settings(image_id, FLAVORS, "nfs", passwords=False)


if __name__ == "__main__":
    main()
