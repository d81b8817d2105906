"""The texts of the golden files, written for this project and held out from training."""

STORY = """The lighthouse keeper's daughter had never seen the town across the bay, though its lamps shone every evening \
like a second row of stars. One autumn a storm tore the rowing boat from its rope, and for nine days nobody could leave \
the rock. On the tenth morning the sea lay flat and gray as slate, and an old seal came up to the steps with the oar in \
its mouth.

"Thank you," said Maren, because her father had taught her to be polite to anyone who brought something back.

"You will find the boat behind the island," the seal answered, "but you must not row home before you have eaten with \
the people there. They are lonely, and they count the days by the visitors they do not have."

So she wrapped two loaves and a piece of cheese in a cloth, tied her shoes, and waited for the tide. Her father stood \
at the window of the lamp room and did not call her back. He only turned the great glass a little, so that it would \
burn toward the island when the night came. By noon she could smell smoke and baking, and on the beach three children \
were already dragging the boat up over the stones.
"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_tide",
            "description": "Get the time of the next high tide at a harbor.",
            "parameters": {
                "type": "object",
                "properties": {
                    "harbor": {"type": "string", "description": "Name of the harbor"},
                    "days": {"type": "integer", "description": "Days from today"},
                },
                "required": ["harbor"],
            },
        },
    }
]

MESSAGES = [
    {"role": "user", "content": "When is the next high tide at Porthaven in 2 days?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "I can use get_tide. The harbor is Porthaven, days is 2.",
        "tool_calls": [
            {"type": "function", "function": {"name": "get_tide", "arguments": {"harbor": "Porthaven", "days": 2}}}
        ],
    },
    {"role": "tool", "content": '{"time": "06:40"}'},
    {"role": "assistant", "content": "The tide is high at 06:40.", "reasoning_content": "I have the result."},
]
