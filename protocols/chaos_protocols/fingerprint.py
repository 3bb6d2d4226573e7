"""A site's id in words, so that two operators can compare it on the telephone.

An id is what tells a site from an impostor (spec 2.1), and nobody reads 32 hexadecimal characters to another without a
slip. One word stands for each of its 16 bytes; all of them count, since whoever may choose among many keys finds one
that agrees in a few. The words ascend with the bytes that they stand for, and no two of them sound alike. The list is
part of what operators of two releases compare (spec 2.15), so it never changes. Imports nothing but names.
"""

from __future__ import annotations

from chaos_protocols.names import SITE_ID_CHARACTERS, SiteId

WORD_LIST = """
acorn actor agent alarm album amber anchor angle ankle apple apron arrow artist attic autumn award
bacon badge baker ballet bamboo banjo barrel basket beacon berry bishop blanket bottle bridge bucket butter
cabin cactus camel candle canyon carpet castle cattle cellar cement cheese cherry circus clover coffee copper
dagger daisy dancer debate desert diamond dinner doctor dolphin donkey double dragon drawer driver drummer dusty
eagle earth easel echo eclipse editor eight elbow eleven empire engine escort estate evening exile expert
fabric falcon family farmer feather fence fiddle finger flower forest fortune fountain freezer frozen furnace future
galaxy garden garlic gazelle giant ginger giraffe glacier glove goblet golden gospel grape gravel guitar gutter
habit hammer harbour harvest hazel helmet hermit hockey hollow honey horizon hotel humble hundred hunter hybrid
iceberg idol igloo image index infant inkwell insect island ivory jacket jaguar jelly jewel jigsaw jungle
kernel kettle kidney kitchen kiwi knife koala ladder lagoon lantern laurel leather lemon leopard lizard lobster
machine magnet mango marble meadow melon metal mirror mitten monkey morning mountain muffin museum mustard napkin
needle nephew nickel noble noodle number nutmeg oasis object ocean olive onion orbit orchid otter oyster
paddle palace parrot pasta pencil pepper picnic pigeon pillow pocket poem potato puzzle quarry quartz quilt
rabbit radio rainbow raven ribbon river robin rocket saddle salmon sandal satin school shadow silver spider
tablet temple theatre ticket tiger timber tomato tractor tulip turtle umbrella uncle urban valley velvet violin
voyage waffle walnut wedding whistle willow window winter wizard yacht yellow yogurt zebra zenith zigzag zipper
"""
WORDS = tuple(WORD_LIST.split())
"""The word of each byte, 0 to 255."""

GROUP_WORDS = 4
"""So many are read in one breath."""


def words_of(site: SiteId) -> str:
    """16 words in four groups, "acorn actor agent alarm, ...". Raises ValueError for what is no site id."""
    if len(site) != SITE_ID_CHARACTERS:
        raise ValueError(f"a site id has {SITE_ID_CHARACTERS} characters")
    words = [WORDS[byte] for byte in bytes.fromhex(site)]
    groups = [" ".join(words[at : at + GROUP_WORDS]) for at in range(0, len(words), GROUP_WORDS)]
    return ", ".join(groups)


def site_of_words(text: str) -> SiteId | None:
    """The id that these 16 words stand for, whatever stands between them; None: they are not 16, or one is unknown."""
    words = text.lower().replace(",", " ").split()
    if len(words) * 2 != SITE_ID_CHARACTERS or not all(word in WORDS for word in words):
        return None
    return SiteId(bytes(WORDS.index(word) for word in words).hex())
