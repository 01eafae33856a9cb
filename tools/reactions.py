"""368 textbook reactions as SMILES, made from templates: python reactions.py > reactions.txt."""

import random

ACIDS = ["C", "CC", "C(C)C", "C1CC1", "CCc1ccccc1", "c1ccccc1", "c1ccc(F)cc1", "c1ccc(OC)cc1", "c1ccncc1", "c1cccs1", "c1ccc(Cl)cc1", "CCC(=O)OC"]  # fmt: skip  # noqa: E501
AMINES = ["CC", "CCC", "C(C)C", "Cc1ccccc1", "c1ccccc1", "C1CCCCC1", "CCOC", "CC(C)C", "Cc1ccc(F)cc1", "c1ccc(C)cc1", "CCc1ccccc1", "C1CCCC1"]  # fmt: skip  # noqa: E501
GROUPS = ["C", "F", "Cl", "OC", "C#N", "C(F)(F)F", "C(C)=O", "C(=O)OC"]
RINGS = ["c2ccccc2", "c2ccncc2", "c2cccs2", "c2ccc(C)cc2", "c2cccc(F)c2", "c2cnccn2"]
REAGENTS = ["", "", ".CCN(CC)CC", ".CN(C)C=O", ".ClCCl", ".O=C([O-])[O-].[K+].[K+]", ".C1CCOC1"]

reactions = []
for acid in ACIDS:
    for amine in AMINES:
        reactions.append((f"OC(=O){acid}.N{amine}", f"O=C(N{amine}){acid}"))
        reactions.append((f"OC(=O){acid}.O{amine}", f"O=C(O{amine}){acid}"))
for group in GROUPS:
    nitro, amino = f"O=[N+]([O-])c1ccc({group})cc1", f"Nc1ccc({group})cc1"
    reactions.append((f"{nitro}.[Fe]", amino))
    for ring in RINGS:
        bromide = "Br" + ring.replace("2", "1")
        boron = f"OB(O)c1ccc({group})cc1"
        reactions.append((f"{boron}.{bromide}", f"{ring}-c1ccc({group})cc1"))
for amine in AMINES:
    reactions.append(
        (f"O=[N+]([O-])c1ccc(F)cc1.N{amine}", f"O=[N+]([O-])c1ccc(N{amine})cc1"),
    )
    reactions.append((f"CC(C)(C)OC(=O)N{amine}.O=C(O)C(F)(F)F", f"N{amine}"))
draw = random.Random(0)
draw.shuffle(reactions)
for left, right in reactions:
    print(f"{left}{draw.choice(REAGENTS)}>>{right}")
